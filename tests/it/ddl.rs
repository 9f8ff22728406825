//! The output of `highwater ddl`.

use std::process::{Command, Output};

use expect_test::expect;

fn ddl(arguments: &[&str]) -> Output {
    ddl_of("state", arguments)
}

fn ddl_of(what: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(["ddl", what]).args(arguments).env_clear().output().unwrap()
}

#[test]
fn fence_and_ledger_are_printed_with_their_grants() {
    let output = ddl_of("fence", &[]);
    assert!(output.status.success() && output.stderr.is_empty());
    expect![[r#"
        CREATE TABLE [dbo].[highwater_fence] (
            [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [generation] bigint NOT NULL,
            [token] bigint NOT NULL,
            [checked_at] datetime2(7) NOT NULL,
            PRIMARY KEY CLUSTERED ([app], [poller])
        );
        GRANT SELECT ON [dbo].[highwater_fence] TO [highwater];
        GRANT INSERT ON [dbo].[highwater_fence] TO [highwater];
        GRANT UPDATE ON [dbo].[highwater_fence] TO [highwater];
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).unwrap());
    let output = ddl_of("ledger", &["--table", "ops.[my events]", "--user", "my]app"]);
    assert!(output.status.success() && output.stderr.is_empty());
    expect![[r#"
        CREATE TABLE [ops].[my events] (
            [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [event_id] binary(16) NOT NULL,
            [replay_id] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [applied_at] datetime2(3) NOT NULL,
            PRIMARY KEY CLUSTERED ([app], [poller], [event_id], [replay_id])
        );
        CREATE INDEX [ix_my events_applied_at] ON [ops].[my events] ([app], [poller], [applied_at]);
        GRANT SELECT ON [ops].[my events] TO [my]]app];
        GRANT INSERT ON [ops].[my events] TO [my]]app];
        GRANT DELETE ON [ops].[my events] TO [my]]app];
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).unwrap());
    let output = ddl_of("fence", &["--table", "other.dbo.fence"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("`--table`: table `other.dbo.fence` names a database"), "{text}");
}

#[test]
fn the_journal_table_is_printed_with_its_index_and_append_only_grants() {
    let output = ddl_of("journal", &["--table", "ops.[my journal]", "--user", "my]app"]);
    assert!(output.status.success() && output.stderr.is_empty());
    expect![[r#"
        CREATE TABLE [ops].[my journal] (
            [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [poller] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [part] nvarchar(40) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [begins_at] bigint NOT NULL,
            [ends_at] bigint NOT NULL,
            [content] varbinary(max) NOT NULL,
            [appended_at] datetime2(7) NOT NULL,
            PRIMARY KEY CLUSTERED ([app], [poller], [part], [ends_at])
        );
        CREATE UNIQUE INDEX [ix_begins_at] ON [ops].[my journal] ([app], [poller], [begins_at], [part]);
        GRANT SELECT ON [ops].[my journal] TO [my]]app];
        GRANT INSERT ON [ops].[my journal] TO [my]]app];
        GRANT DELETE ON [ops].[my journal] TO [my]]app];
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).unwrap());
    let output = ddl_of("journal", &["--table", "other.dbo.journal"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn only_statements_go_to_standard_output() {
    let output = ddl(&[]);
    assert!(output.status.success());
    assert!(output.stderr.is_empty());
    expect![[r#"
        CREATE TABLE [dbo].[highwater_state] (
            [app] nvarchar(128) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [name] nvarchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
            [content] varbinary(max) NOT NULL,
            [etag] rowversion NOT NULL,
            [last_modified] datetime2(7) NOT NULL,
            PRIMARY KEY CLUSTERED ([app], [name])
        );
        GRANT SELECT ON [dbo].[highwater_state] TO [highwater];
        GRANT INSERT ON [dbo].[highwater_state] TO [highwater];
        GRANT UPDATE ON [dbo].[highwater_state] TO [highwater];
        GRANT DELETE ON [dbo].[highwater_state] TO [highwater];
    "#]]
    .assert_eq(&String::from_utf8(output.stdout).unwrap());
}

#[test]
fn table_and_user_are_quoted() {
    let output = ddl(&["--table", "ops.[High Water]", "--user", "my]app"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("CREATE TABLE [ops].[High Water] ("), "{text}");
    assert!(text.ends_with("GRANT DELETE ON [ops].[High Water] TO [my]]app];\n"), "{text}");
}

#[test]
fn an_invalid_table_name_is_a_usage_error() {
    let output = ddl(&["--table", "other.dbo.state"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("`--table`: table `other.dbo.state` names a database"), "{text}");
}

#[test]
fn old_names_point_to_the_new_ones() {
    for what in ["state", "journal", "fence", "ledger"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        let output = command.args([what, "ddl", "--user", "app"]).env_clear().output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let text = String::from_utf8(output.stderr).unwrap();
        let expected = format!(
            "highwater: `{what} ddl` is now `ddl {what}`: `highwater help` lists all commands\n"
        );
        assert_eq!(text, expected);
    }
}
