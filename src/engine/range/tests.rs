use super::*;

fn rv(version: u64, id: Option<i64>) -> Cursor {
    let key = id.map(|id| ("id".to_owned(), id.into()));
    Cursor::row_version(RowVersion(version), key.into_iter().collect())
}

fn stamped(text: &str) -> Cursor {
    Cursor { mode: CursorMode::TimestampPk, value: text.to_owned(), key: KeyValues::new() }
}

fn tracked(text: &str) -> Cursor {
    Cursor { mode: CursorMode::ChangeTracking, value: text.to_owned(), key: KeyValues::new() }
}

#[test]
fn a_range_ends_at_the_checkpoint_at_the_latest() {
    let at = rv(9, Some(7));
    let range = |upto| Range::before(&at, Some(rv(1, None)), upto).map(|range| range.upto);
    assert_eq!(range(None), Ok(at.clone()));
    assert_eq!(range(Some(at.clone())), Ok(at.clone()));
    assert_eq!(range(Some(rv(8, None))), Ok(rv(8, None)));
    // Rows after the checkpoint's key have the same leading part, and are not delivered yet.
    assert_eq!(range(Some(rv(9, None))), Ok(at.clone()));
    assert_eq!(range(Some(rv(9, Some(8)))), Err(RangeError::KeyUnknown(rv(9, None).value)));
    assert!(matches!(range(Some(rv(10, None))), Err(RangeError::BeyondCheckpoint { .. })));
    assert!(matches!(range(Some(stamped("2026-01-01"))), Err(RangeError::OtherMode(..))));
    // After all rows with its leading part.
    let all_rows = Range::before(&rv(9, None), None, Some(rv(9, Some(8))));
    assert_eq!(all_rows.map(|range| range.upto), Ok(rv(9, Some(8))));
}

#[test]
fn an_empty_range_is_rejected() {
    let range = |after, upto| Range::before(&rv(9, None), Some(after), Some(upto));
    for (after, upto) in [
        (rv(5, None), rv(4, None)),
        (rv(5, None), rv(5, None)),
        (rv(5, None), rv(5, Some(1))),
        (rv(5, Some(1)), rv(5, Some(1))),
    ] {
        let ended = range(after.clone(), upto.clone());
        assert!(matches!(ended, Err(RangeError::Empty { .. })), "{after:?} {upto:?}");
    }
    // Only the server can compare keys.
    assert!(range(rv(5, Some(1)), rv(5, Some(2))).is_ok());
    assert!(range(rv(5, Some(1)), rv(5, None)).is_ok());
}

#[test]
fn only_changes_of_change_tracking_can_be_redelivered() {
    let range = |after: Option<&str>, upto: Option<&str>| {
        Range::before(&tracked("30"), after.map(tracked), upto.map(tracked))
    };
    assert!(range(Some("17"), None).is_ok());
    assert!(range(Some("17"), Some("20")).is_ok());
    for (after, upto) in [(None, None), (Some("snapshot@3"), Some("20"))] {
        assert_eq!(range(after, upto), Err(RangeError::FirstReading), "{after:?}");
    }
    let reading = Range::before(&tracked("snapshot@9"), Some(tracked("3")), None);
    assert_eq!(reading, Err(RangeError::FirstReading));
}

#[test]
fn positions_are_read_as_documents_and_people_write_them() {
    let version = "0x00000000000007D1";
    assert_eq!(position("0x00000000000007d1", &rv(1, None)), Ok(rv(2001, None)));
    let json = format!(r#"{{"kind":"rowversion","value":"{version}","tiebreaker":{{"id":7}}}}"#);
    assert_eq!(position(&json, &rv(1, None)), Ok(rv(2001, Some(7))));
    let number = Cursor::integer(1, KeyValues::new());
    assert_eq!(position(" +9 ", &number), Ok(Cursor::integer(9, KeyValues::new())));
    assert_eq!(position("17", &tracked("3")), Ok(tracked("17")));
    for (text, like, value) in [
        ("2026-04-07", "2026-01-01T00:00:00.0000000", Some("2026-04-07T00:00:00.0000000")),
        (
            "2026-04-07 10:20:30.5",
            "2026-01-01T00:00:00.0000000",
            Some("2026-04-07T10:20:30.5000000"),
        ),
        (
            "2026-04-07T10:20:30",
            "2026-01-01T00:00:00.0000000Z",
            Some("2026-04-07T10:20:30.0000000Z"),
        ),
        (
            "2026-04-07T10:20:30Z",
            "2026-01-01T00:00:00.0000000Z",
            Some("2026-04-07T10:20:30.0000000Z"),
        ),
        ("2026-04-07T10:20:30Z", "2026-01-01T00:00:00.0000000", None),
        ("2026-04-07", "2026-01-01", Some("2026-04-07")),
        ("2026-04-07T10:20:30", "2026-01-01", None),
        ("yesterday", "2026-01-01T00:00:00.0000000", None),
    ] {
        assert_eq!(position(text, &stamped(like)).ok(), value.map(stamped), "{text} {like}");
    }
}

#[test]
fn an_invalid_position_is_rejected_with_the_expected_form() {
    let error_of = |text: &str, like: &Cursor| position(text, like).unwrap_err().to_string();
    assert!(error_of("9", &rv(1, None)).contains("invalid position `9` for mode `rowversion`"));
    assert!(error_of("9", &rv(1, None)).contains("16 hex digits"));
    assert!(error_of("{", &rv(1, None)).contains("as in a state document"));
    let other = r#"{"kind":"integer+pk","value":"3","tiebreaker":{}}"#;
    assert!(error_of(other, &rv(1, None)).contains("`integer+pk`"));
}

#[test]
fn windows_cover_the_range_without_gap_or_overlap() {
    let range = Range { after: Some(rv(1, None)), upto: rv(9, Some(3)) };
    for ends in [vec![], vec![rv(4, Some(1))], vec![rv(4, Some(1)), rv(7, None)]] {
        let windows = range.windows(&ends);
        assert_eq!(windows.len(), ends.len() + 1);
        assert_eq!(windows[0].after, range.after);
        assert_eq!(windows.last().unwrap().upto, range.upto);
        for pair in windows.windows(2) {
            assert_eq!(pair[1].after.as_ref(), Some(&pair[0].upto));
        }
    }
    // An end equal to that of the range does not create an empty window.
    assert_eq!(range.windows(std::slice::from_ref(&range.upto)), [range]);
}

#[test]
fn names_identify_a_range_its_windows_and_its_replay_id() {
    let name = Purpose::Backfill.name("orders", "ab12");
    assert_eq!(window_name(&name, 3), "orders.backfill.ab12.3");
    assert_eq!(Purpose::Replay.name("orders", "x"), "orders.replay.x");
    assert_eq!(Purpose::Replay.replay_id("x"), "replay-x");
    for (id, fits) in [("ab-12", true), ("", false), ("A", false), ("a.b", false), ("a/b", false)] {
        assert_eq!(is_id(id), fits, "{id}");
    }
}
