//! Conformance with the Functions host: the real program under a fake host.
//!
//! Each required recorded case is a test here, by the table below; the last test checks the table against the
//! record. Nothing needs to be installed: the SQL server is embedded, state is in files, and the target is a
//! small HTTP server with scripted responses.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test may panic"
)]
#![expect(clippy::print_stdout, reason = "a test that is given less than it could be says so")]

mod bench;
mod commands;
mod credentials;
mod data;
mod dev;
mod discovery;
mod extra;
mod first_steps;
mod folder;
mod follow;
mod host_check;
mod hostile_text;
mod identity;
mod journal_commands;
mod lifecycle;
mod log_lines;
mod masking;
mod memory;
mod notifications;
mod orphan;
mod package;
mod partitions;
mod progress;
mod ranges;
mod receiver;
mod receiver_projects;
mod recovery;
mod replies;
mod requests;
mod reset;
mod responses;
mod runs;
mod schedules;
mod schema;
mod secrets;
mod situations;
mod stalled;
mod standalone;
mod start;
mod status;
mod stdout_handler;
mod stop;
mod suggested_commands;
mod suggestions;
mod timeouts;
mod token_doubles;
mod trace;
mod tutorials;
mod upgrades;
mod walkthrough;

use std::collections::BTreeSet;

/// Defines a test for each case, and collects its id.
macro_rules! cases {
    ($($id:literal => $name:ident = $module:ident :: $run:ident ( $($argument:expr),* );)*) => {
        /// Cases with a test.
        const COVERED: &[&str] = &[$($id),*];

        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $module::$run($($argument),*).await;
            }
        )*
    };
}

cases! {
    "START-01" => start_01_ready_within_time = start::ready_within_time();
    "START-02" => start_02_the_old_port_variable_is_enough = start::old_port_variable();
    "START-03" => start_03_without_a_port_it_exits_with_one_line = start::no_port();
    "START-04" => start_04_a_wrong_or_taken_port_exits_with_one_line = start::wrong_port();
    "START-05" => start_05_unreachable_services_fail_invocations_only = start::unreachable();
    "START-06" => start_06_pings_are_answered_during_a_run = start::pings_during_a_run();
    "START-07" => start_07_listens_on_ipv4_loopback_only = start::loopback_only();
    "START-08" => start_08_binds_the_same_port_after_a_kill = start::same_port_after_a_kill();

    "REQ-01" => req_01_scheduled = requests::recorded("01_scheduled");
    "REQ-02" => req_02_first_run = requests::recorded("02_first_run");
    "REQ-03" => req_03_restarted_before_first_fire =
        requests::recorded("03_restarted_before_first_fire");
    "REQ-04" => req_04_no_monitor = requests::recorded("04_no_monitor");
    "REQ-05" => req_05_past_due_reaches_the_log = requests::past_due("05_past_due");
    "REQ-06" => req_06_timespan_schedule = requests::recorded("06_timespan_schedule");
    "REQ-10" => req_10_another_time_zone = requests::recorded("10_scheduled_tz_newyork");
    "REQ-11" => req_11_fired_early = requests::recorded("11_fired_early_last_time");
    "REQ-12" => req_12_run_on_startup = requests::recorded("12_run_on_startup");
    "REQ-14" => req_14_admin_empty_input = requests::by_hand("14_admin_empty_input");
    "REQ-15" => req_15_admin_without_status = requests::by_hand("15_admin_empty_input_no_status");
    "REQ-16" => req_16_admin_json_input = requests::by_hand("16_admin_json_input");
    "REQ-18" => req_18_first_attempt_under_a_policy = requests::recorded("18_retry_attempt_0");
    "REQ-19" => req_19_retry_count_reaches_the_log = requests::retried("19_retry_attempt_1");
    "REQ-21" => req_21_minimal = requests::recorded("21_minimal");
    "REQ-30" => req_30_any_framing_gives_the_same = requests::any_framing();
    "REQ-31" => req_31_a_connection_is_reused = requests::keep_alive();
    "REQ-33" => req_33_a_bad_body_is_400 = requests::bad_body();
    "REQ-34" => req_34_unknown_functions_are_404 = requests::unknown_function();
    "REQ-35" => req_35_a_body_of_3_mib_is_accepted = requests::large_body();

    "RESP-01" => resp_01_success_has_all_three_fields = responses::success();
    "RESP-02" => resp_02_a_failure_is_500_with_its_cause_logged = responses::failure_with_cause();
    "RESP-03" => resp_03_a_panic_is_500_and_the_process_lives = responses::panic();
    "RESP-04" => resp_04_no_reply_hangs_the_host = responses::none_hangs();
    "RESP-05" => resp_05_the_judge_agrees_with_the_record = responses::judge_agrees();
    "RESP-06" => resp_06_odd_texts_are_valid_json_in_logs = responses::odd_texts();

    "RETRY-01" => retry_01_three_attempts_one_id_one_effect = runs::retry_policy();

    "CONC-01" => conc_01_a_second_run_of_a_function_is_skipped = runs::second_run();
    "CONC-03" => conc_03_one_of_two_hosts_fires_or_delivers = lifecycle::two_hosts();

    "TIME-01" => time_01_after_a_timeout_and_kill_the_next_run_repairs = timeouts::host_limit();
    "TIME-02" => time_02_our_deadline_comes_before_the_hosts = timeouts::own_deadline();

    "CRASH-01" => crash_01_rows_are_redelivered_after_a_kill = runs::killed_mid_run();
    "CRASH-02" => crash_02_no_failed_invocation_ends_the_process = runs::three_exits();
    "CRASH-04" => crash_04_an_interrupted_run_is_past_due_if_possible = lifecycle::host_killed();

    "STOP-01" => stop_01_idle_exits_within_a_second = stop::idle();
    "STOP-02" => stop_02_sigterm_finishes_the_in_flight_batch = stop::sigterm();
    "STOP-03" => stop_03_sigint_does_the_same = stop::sigint();

    "LOG-01" => log_01_one_line_per_event_with_the_invocation_id = log_lines::good_run();
    "LOG-02" => log_02_operator_actions_are_information_and_automatic_ones_warnings = log_lines::warning();

    "PKG-01" => pkg_01_the_host_accepts_the_staged_folder = package::layout();
    "PKG-02" => pkg_02_the_zip_keeps_the_executable_bit = package::zip();
    "PKG-03" => pkg_03_each_function_has_a_route = package::routes();
}

/// Required cases without a test here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("TRACE-01", "in `tests/telemetry`, which decodes what is exported"),
    ("TRACE-02", "in `tests/telemetry`, which decodes what is exported"),
];

#[test]
fn every_required_case_has_a_test() {
    let cases = data::json("conformance_cases.json");
    let must: BTreeSet<&str> = cases
        .as_array()
        .unwrap()
        .iter()
        .filter(|case| case["priority"] == "must")
        .map(|case| case["id"].as_str().unwrap())
        .collect();
    let known = COVERED.iter().copied().chain(ELSEWHERE.iter().map(|(id, _)| *id));
    let known: Vec<&str> = known.collect();
    let unique: BTreeSet<&str> = known.iter().copied().collect();
    assert_eq!(unique.len(), known.len(), "a case is named twice");
    assert_eq!(must.difference(&unique).collect::<Vec<_>>(), Vec::<&&str>::new());
}
