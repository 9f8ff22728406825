//! Schedules: the fake host fires by its own rules, and the program predicts the same.

use highwater::schedule::{Schedule, Zone};
use highwater::testing::zone_file;
use time::OffsetDateTime;
use time::macros::{datetime, format_description};
use tokio::time::{Instant, sleep};

use crate::bench::{Bench, LIMIT, PROGRAM};

/// Zones with clock changes of an hour and of half an hour, in both halves of the year, and one without.
const RULES: [&str; 4] = [
    "PST8PDT,M3.2.0,M11.1.0",
    "CET-1CEST,M3.5.0,M10.5.0/3",
    "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0",
    "<+1245>-12:45",
];
/// Hours in which clocks of these zones change, and one without a change.
const MOMENTS: [OffsetDateTime; 7] = [
    datetime!(2026-03-08 10:00 UTC),
    datetime!(2026-11-01 9:00 UTC),
    datetime!(2026-03-29 1:00 UTC),
    datetime!(2026-10-25 1:00 UTC),
    datetime!(2026-10-03 15:30 UTC),
    datetime!(2026-04-04 15:00 UTC),
    datetime!(2026-07-15 12:00 UTC),
];

/// Random numbers from a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn field(&mut self, min: u64, max: u64) -> String {
        let mut number = || min + self.below(max - min + 1);
        let (one, other) = (number(), number());
        match self.below(6) {
            0 | 1 => "*".to_owned(),
            2 => one.to_string(),
            3 => format!("*/{}", 1 + one % 20),
            4 => format!("{one}-{other}"),
            _ => format!("{one},{other}"),
        }
    }

    fn expression(&mut self) -> String {
        // The night hours, in which clocks change.
        let hour = if self.below(2) == 0 { self.field(0, 3) } else { self.field(0, 23) };
        let date = if self.below(3) == 0 {
            format!("{} {} {}", self.field(1, 28), self.field(1, 12), self.field(0, 6))
        } else {
            "* * *".to_owned()
        };
        let second = self.below(60);
        format!("{second} {} {hour} {date}", self.field(0, 59))
    }
}

#[test]
fn the_program_and_the_host_agree_on_every_next_tick_across_clock_changes() {
    let mut rng = Rng(22);
    for _ in 0..2000 {
        let text = rng.expression();
        let file = zone_file(RULES[usize::try_from(rng.below(4)).unwrap()]);
        let zone = Zone::parse("here", &file).unwrap();
        let ours = Schedule::parse(&text).unwrap().in_zone(zone);
        let hosts = highwater_fakehost::Schedule::parse(&text, Some(&file)).unwrap();
        let moment = MOMENTS[usize::try_from(rng.below(7)).unwrap()];
        let minutes = i64::try_from(rng.below(600)).unwrap() - 300;
        let mut at = moment + time::Duration::minutes(minutes);
        for _ in 0..4 {
            let (next, of_host) = (ours.next_after(at).unwrap(), hosts.next(at).unwrap());
            assert_eq!(
                (next, next.offset()),
                (of_host, of_host.offset()),
                "`{text}` after {at} in {}",
                String::from_utf8_lossy(&file)
            );
            at = next;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validate_and_status_name_the_next_tick_at_which_the_host_fires() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.schedule("%NIGHTLY_SCHEDULE%");
    let root = bench.root();
    std::os::unix::fs::symlink(PROGRAM, format!("{root}/handler")).unwrap();
    std::fs::write(format!("{root}/local.settings.json"), r#"{"Values":{}}"#).unwrap();
    let zones = bench.folder.path().join("zones");
    std::fs::create_dir_all(&zones).unwrap();
    bench.set_env("TZDIR", zones.to_str().unwrap());
    bench.command(&["init", "nightly"]).await.done();
    for (number, rule) in RULES.iter().enumerate() {
        std::fs::write(zones.join(number.to_string()), zone_file(rule)).unwrap();
        bench.set_env("TZ", &number.to_string());
        for schedule in ["0 30 2 * * *", "0 0 */6 29 2 *", "15 10 9 * * MON"] {
            bench.set_env("NIGHTLY_SCHEDULE", schedule);
            let host = bench.host().await;
            let next = host.next_tick("nightly").unwrap();
            let form = format_description!(
                "[year]-[month]-[day] [hour]:[minute]:[second] [offset_hour sign:mandatory]:[offset_minute]"
            );
            let next = next.format(&form).unwrap();
            let result = bench.command(&["validate", "--from", &root]).await;
            let expected = format!("`{schedule}` in {number}, next tick {next}");
            assert!(result.done().contains(&expected), "{expected}: {result:?}");
            let settings = format!("{root}/local.settings.json");
            let result = bench.command(&["--settings", &settings, "status"]).await;
            assert!(result.done().contains(&format!("{next} ({number})")), "{next}: {result:?}");
            host.stop().await;
        }
    }
    // Neither predicts a tick that will not come.
    bench.set_env("AzureWebJobs.nightly.Disabled", "true");
    let host = bench.host().await;
    assert_eq!(host.next_tick("nightly"), None);
    let result = bench.command(&["validate", "--from", &root]).await;
    assert!(!result.data.contains("next tick 20"), "{result:?}");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_fires_by_the_schedule_of_the_file_until_it_stops() {
    let mut bench = Bench::with_rows(1..=1).await;
    bench.schedule("%NIGHTLY_SCHEDULE%");
    bench.set_env("NIGHTLY_SCHEDULE", "* * * * * *");
    let host = bench.host().await;
    host.start_timers();
    for id in 2..=3 {
        let end = Instant::now() + LIMIT;
        while bench.receiver.accepted() != (1..id).collect::<Vec<_>>() {
            assert!(Instant::now() < end, "{:#?}", host.journal().records());
            sleep(std::time::Duration::from_millis(20)).await;
        }
        bench.insert(id..=id);
    }
    let executing = |record: &highwater_fakehost::Record| record.message.starts_with("Executing");
    let before = host.journal().records().into_iter().filter(executing).count();
    assert!(before >= 2, "one for each row at least");
    host.finish().await;
    let after = host.journal().records().into_iter().filter(executing).count();
    let executed = |record: &highwater_fakehost::Record| record.message.starts_with("Executed");
    let ended = host.journal().records().into_iter().filter(executed).count();
    assert_eq!(after, ended, "a stop waits for running ticks, and none starts after it");
}
