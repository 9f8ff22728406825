//! Checks the source itself: its formatting, and texts that no file may contain.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn root() -> PathBuf {
    highwater_test_support::root().to_owned()
}

#[test]
fn the_source_is_formatted() {
    let output = Command::new(env!("CARGO"))
        .args(["fmt", "--all", "--check"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_release_is_tested_attested_and_signed_before_it_is_published() {
    let release = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let steps = [
        "uses: ./.github/workflows/ci.yml",
        "uses: ./.github/workflows/advisories.yml",
        "needs: [tests, advisories]",
        "run: .ci/release --twice",
        "uses: actions/attest-build-provenance@",
        "cosign sign-blob --yes --bundle SHA256SUMS.sigstore.json SHA256SUMS",
        "gh release create",
    ];
    let places: Vec<usize> = steps.iter().map(|step| release.find(step).expect(step)).collect();
    assert!(places.is_sorted(), "{places:?}");
}

/// The database of advisories and the index of the registry are only reachable from the forge.
#[test]
fn advisories_and_yanked_crates_are_checked_by_the_forge() {
    let text = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let rules = text(".ci/deny.toml");
    let rules = rules.split("[advisories]\n").nth(1).unwrap().split("\n\n").next().unwrap();
    assert_eq!(rules, "yanked = \"deny\"", "no advisory is ignored");
    // If the index cannot be read, no crate would count as yanked.
    assert!(text(".ci/deny").contains("-D index-failure -D index-cache-load-failure"));
    let workflow = text(".github/workflows/advisories.yml");
    for part in
        ["run: .ci/deny advisories", "schedule:", "cron:", "\"Cargo.lock\"", "workflow_call:"]
    {
        assert!(workflow.contains(part), "{part}");
    }
}

#[test]
fn no_file_names_a_machine_path_or_a_download_host() {
    let tracked = Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let banned =
        [concat!("registry.", "npmjs"), concat!("index.", "crates"), concat!("/wo", "rk/")];
    for name in String::from_utf8_lossy(&tracked.stdout).lines() {
        let Ok(text) = fs::read_to_string(root().join(name)) else { continue };
        for word in banned {
            assert!(!text.contains(word), "{name} names `{word}`");
        }
    }
}
