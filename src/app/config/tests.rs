#![expect(clippy::too_many_lines, reason = "an expectation shows a whole configuration")]

mod chain;
mod defaults;
mod flow;
mod http;
mod source;
mod sql;

use expect_test::{Expect, expect};

use super::*;
use crate::cursor::CursorMode;
use crate::partition::Partition;
use crate::policy::ParkPolicy;

const MINIMAL: &str = "
    AzureWebJobsStorage = UseDevelopmentStorage=true
    SQL = Server=db;Database=shop;User Id=me;Password=hunter2
    HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION = SQL
    HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE = dbo.orders
    HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR = version
    HIGHWATER__POLLERS__ORDERS__SOURCE__KEY = id
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = stdout
";

const FULL: &str = "
    HIGHWATER__APP = shop
    HIGHWATER__STATE__STORE = blob
    HIGHWATER__STATE__CONNECTION = StateStorage
    StateStorage__accountName = shopstate
    StateStorage__clientId = 11111111-2222-3333-4444-555555555555
    StateStorage__credential = managedidentity
    HIGHWATER__STATE__CONTAINER = pollers
    HIGHWATER__FUNCTION_TIMEOUT = 10m
    HIGHWATER__STOP_GRACE = 20s
    HIGHWATER__LOG = warn,highwater=debug
    HIGHWATER__METRICS__ADDRESS = 127.0.0.1:9464
    HIGHWATER__HEALTH__ANONYMOUS = true
    HIGHWATER__RECOVERY__MODE = report
    HIGHWATER__RECOVERY__STUCK_AFTER = 10m
    HIGHWATER__RECOVERY__PAUSED_MAX = 12h
    HIGHWATER__NOTIFY__URL = https://hooks.contoso.com/services/T024F00B4R/hunter2hunter2
    HIGHWATER__NOTIFY__SIGNING_SECRETS = NEW_SECRET
    HIGHWATER__FUNCTIONS__ORDERS_TIMER__POLLER = orders
    SQL = Server=db;Database=shop;User Id=me;Password=hunter2
    HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION = SQL
    HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE = dbo.orders
    HIGHWATER__POLLERS__ORDERS__SOURCE__MODE = timestamp+pk
    HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR = changed_at
    HIGHWATER__POLLERS__ORDERS__SOURCE__KEY = shop_id, order_id
    HIGHWATER__POLLERS__ORDERS__SOURCE__COLUMNS = shop_id, order_id, total
    HIGHWATER__POLLERS__ORDERS__SOURCE__MASK = total:hmac-sha256, phone:drop
    HIGHWATER__POLLERS__ORDERS__SOURCE__MASK_SECRET = MASK_KEY
    MASK_KEY = hunter2hunter2hunter2
    HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER = total > @least
    HIGHWATER__POLLERS__ORDERS__SOURCE__FILTER_PARAMS__LEAST = decimal(9, 2):0
    HIGHWATER__POLLERS__ORDERS__SOURCE__SOFT_DELETE = deleted_at
    HIGHWATER__POLLERS__ORDERS__SOURCE__OPERATIONS = upsert
    HIGHWATER__POLLERS__ORDERS__SOURCE__SETTLE = 0
    HIGHWATER__POLLERS__ORDERS__SOURCE__CLOCK = -03:30
    HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER = 10m
    HIGHWATER__POLLERS__ORDERS__SOURCE__ON_SCHEMA_CHANGE = stop
    HIGHWATER__POLLERS__ORDERS__SOURCE__START = now
    HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = http
    HIGHWATER__POLLERS__ORDERS__HANDLER__URL = http://orders.internal/api/changes?code=hunter2hunter2
    HIGHWATER__POLLERS__ORDERS__HANDLER__ALLOW_HTTP = true
    HIGHWATER__POLLERS__ORDERS__HANDLER__TIMEOUT = 30s
    HIGHWATER__POLLERS__ORDERS__HANDLER__TRIES_MAX = 5
    HIGHWATER__POLLERS__ORDERS__HANDLER__CONCURRENCY = 4
    HIGHWATER__POLLERS__ORDERS__HANDLER__BODY = cloudevents
    HIGHWATER__POLLERS__ORDERS__HANDLER__GZIP = true
    HIGHWATER__POLLERS__ORDERS__HANDLER__ACCEPT_HTML = true
    HIGHWATER__POLLERS__ORDERS__HANDLER__SIGNING_SECRETS = NEW_SECRET, OLD_SECRET
    NEW_SECRET = whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==
    OLD_SECRET = whsec_T0xEX2h1bnRlcjJodW50ZXIyaHVudGVyMg==
    HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH = header
    HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_SECRET = API_KEY
    HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_HEADER = X-Api-Key
    API_KEY = hunter2hunter2
    HIGHWATER__POLLERS__ORDERS__HANDLER__CA = certificates/company.pem
    HIGHWATER__POLLERS__ORDERS__HANDLER__STALL_MAX = 30s
    HIGHWATER__POLLERS__ORDERS__LEASE__TTL = 60s
    HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 500
    HIGHWATER__POLLERS__ORDERS__BATCH_BYTES_MAX = 512KiB
    HIGHWATER__POLLERS__ORDERS__VALUE_BYTES_MAX = 64KiB
    HIGHWATER__POLLERS__ORDERS__BATCHES_MAX = 20
    HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX = 9m
    HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MIN = 50
    HIGHWATER__POLLERS__ORDERS__PREFETCH = false
    HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT = false
    HIGHWATER__POLLERS__ORDERS__FOLLOW_FOR = 0
    HIGHWATER__POLLERS__ORDERS__FOLLOW_INTERVAL = 100ms
    HIGHWATER__POLLERS__ORDERS__STATE_REFRESH = 1m
    HIGHWATER__POLLERS__ORDERS__STATUS_INTERVAL = 0
    HIGHWATER__POLLERS__ORDERS__COUNT_ROWS_MAX = 250
    HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MIN = 500ms
    HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MAX = 1h
    HIGHWATER__POLLERS__ORDERS__RETRY_AFTER_MAX = 2h
    HIGHWATER__POLLERS__ORDERS__ON_FAILURE = park
    HIGHWATER__POLLERS__ORDERS__ATTEMPTS_MAX = 7
    HIGHWATER__POLLERS__ORDERS__PARK_RETRIES_MAX = 50
    HIGHWATER__POLLERS__ORDERS__PARK_AGE_MAX = 3d
    HIGHWATER__POLLERS__ORDERS__BREAKER_ROWS = 20
    HIGHWATER__POLLERS__ORDERS__RECORD_AGE_MAX = 12h
    HIGHWATER__POLLERS__ORDERS__BISECT_ON_ERROR = true
    HIGHWATER__POLLERS__ORDERS__CRASHES_MAX = 3
    HIGHWATER__POLLERS__ORDERS__ON_MISSING_STATE = recreate
    HIGHWATER__POLLERS__ORDERS__JOURNAL = full
    HIGHWATER__POLLERS__ORDERS__JOURNAL_RETENTION = 0
    HIGHWATER__POLLERS__ORDERS__PARTITIONS = 1
";

/// Settings of other handler kinds than that of the full example.
const OTHER_KINDS: &str = "
    HIGHWATER__POLLERS__ORDERS__HANDLER__COMMAND = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__CONNECTION = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__TABLE = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__KEY = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__COLUMNS = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__DELETES = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__FENCE_TABLE = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_TABLE = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__LEDGER_DAYS = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__CONTAINER = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__QUEUE = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__ORCHESTRATOR = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__SYSTEM_KEY = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__MESSAGE_EVENTS_MAX = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__MESSAGE_ENCODING = another
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEPS = warehouse, notify
    HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__NOTIFY__KIND = stdout
";

/// Reads `NAME = value` lines; a later line wins.
fn vars(texts: &[&str]) -> BTreeMap<String, String> {
    let lines = texts.iter().flat_map(|text| text.lines());
    let pairs = lines.filter_map(|line| line.trim().split_once(" ="));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

fn read(texts: &[&str]) -> Config {
    Config::from_vars(&vars(texts)).unwrap()
}

fn check_mistakes(texts: &[&str], expected: &Expect) {
    let errors = Config::from_vars(&vars(texts)).unwrap_err();
    expected.assert_eq(&format!("{errors}\n"));
}

#[test]
fn defaults_are_those_of_the_table() {
    let expected = expect![[r#"
        Config {
            app: "local",
            state: Blob {
                connection_setting: "AzureWebJobsStorage",
                access: Development {
                    endpoint: Url {
                        scheme: "http",
                        cannot_be_a_base: false,
                        username: "",
                        password: None,
                        host: Some(
                            Ipv4(
                                127.0.0.1,
                            ),
                        ),
                        port: Some(
                            10000,
                        ),
                        path: "/devstoreaccount1",
                        query: None,
                        fragment: None,
                    },
                },
                container: "db-state",
            },
            function_timeout: 300s,
            function_timeout_set: 300s,
            stop_grace: 9s,
            log: "warn,highwater=info",
            metrics: MetricsConfig {
                address: None,
            },
            health_is_anonymous: false,
            recovery: RecoveryConfig {
                mode: Repair,
                stuck_after: 1800s,
                paused_max: 86400s,
            },
            notify: None,
            pollers: {
                "orders": PollerConfig {
                    name: "orders",
                    source: SourceSettings {
                        poller: "orders",
                        connection: SqlConnection {
                            host: "db",
                            instance: None,
                            port: 1433,
                            database: Some(
                                "shop",
                            ),
                            auth: Password {
                                user: "me",
                                password: SecretBox<str>([REDACTED]),
                            },
                            encrypt: Mandatory,
                            trust_server_certificate: false,
                            host_name_in_certificate: None,
                            server_certificate: None,
                            connect_timeout: 15s,
                            command_timeout: 30s,
                            application_name: "highwater",
                            application_intent_read_only: false,
                            multi_subnet_failover: false,
                            packet_size: None,
                        },
                        relation: Table(
                            "dbo.orders",
                        ),
                        mode: Some(
                            RowVersion,
                        ),
                        cursor_column: Some(
                            "version",
                        ),
                        key: [
                            "id",
                        ],
                        columns: None,
                        columns_excluded: [],
                        mask: Mask {
                            columns: [],
                            secret: None,
                        },
                        filter: None,
                        filter_params: {},
                        soft_delete: None,
                        operations: None,
                        settle: 0ns,
                        clock: Utc,
                        limits: SizeLimits {
                            value_bytes_max: 4194304,
                            batch_bytes_max: 4194304,
                        },
                        on_schema_change: Follow,
                        partition: None,
                    },
                    connection_setting: "SQL",
                    audit_after: None,
                    start_now: false,
                    handler: Stdout,
                    lease: LeaseConfig {
                        ttl: 60s,
                    },
                    limits: LimitsConfig {
                        batch_rows_max: 1000,
                        batches_max: None,
                        handler_stall_max: Some(
                            120s,
                        ),
                        tick_time_max: 240s,
                        count_rows_max: 10000,
                    },
                    flow: Flow {
                        prefetch: true,
                        overlap_commit: false,
                        batch_rows_min: 100,
                        follow: None,
                    },
                    state_refresh: 300s,
                    status_interval: Some(
                        300s,
                    ),
                    retry_delay_min: 1s,
                    retry_delay_max: 300s,
                    retry_after_max: 3600s,
                    policy: FailurePolicy {
                        on_failure: Retry,
                        attempts_max: 5,
                        crashes_max: 5,
                        record_age_max: None,
                        bisect_on_error: false,
                        breaker_rows: 10,
                        park: ParkPolicy {
                            retries_max: 0,
                            age_max: 0ns,
                            backoff: Backoff {
                                first: 1s,
                                max: 3600s,
                            },
                        },
                    },
                    on_missing_state: Stop,
                    journal: JournalConfig {
                        mode: Off,
                        retention: Some(
                            2592000s,
                        ),
                    },
                },
            },
            functions: {},
            groups: {},
        }
    "#]];
    expected.assert_debug_eq(&read(&[MINIMAL]));
}

#[test]
fn a_full_example_of_a_poller_reads_back() {
    expect![[r#"
        PollerConfig {
            name: "orders",
            source: SourceSettings {
                poller: "orders",
                connection: SqlConnection {
                    host: "db",
                    instance: None,
                    port: 1433,
                    database: Some(
                        "shop",
                    ),
                    auth: Password {
                        user: "me",
                        password: SecretBox<str>([REDACTED]),
                    },
                    encrypt: Mandatory,
                    trust_server_certificate: false,
                    host_name_in_certificate: None,
                    server_certificate: None,
                    connect_timeout: 15s,
                    command_timeout: 30s,
                    application_name: "highwater",
                    application_intent_read_only: false,
                    multi_subnet_failover: false,
                    packet_size: None,
                },
                relation: Table(
                    "dbo.orders",
                ),
                mode: Some(
                    TimestampPk,
                ),
                cursor_column: Some(
                    "changed_at",
                ),
                key: [
                    "shop_id",
                    "order_id",
                ],
                columns: Some(
                    [
                        "shop_id",
                        "order_id",
                        "total",
                    ],
                ),
                columns_excluded: [],
                mask: Mask {
                    columns: [
                        (
                            "total",
                            HmacSha256,
                        ),
                        (
                            "phone",
                            Drop,
                        ),
                    ],
                    secret: Some(
                        SecretBox<[u8]>([REDACTED]),
                    ),
                },
                filter: Some(
                    "total > @least",
                ),
                filter_params: {
                    "LEAST": "decimal(9, 2):0",
                },
                soft_delete: Some(
                    "deleted_at",
                ),
                operations: Some(
                    [
                        Upsert,
                    ],
                ),
                settle: 0ns,
                clock: Offset(
                    -210,
                ),
                limits: SizeLimits {
                    value_bytes_max: 65536,
                    batch_bytes_max: 524288,
                },
                on_schema_change: Stop,
                partition: None,
            },
            connection_setting: "SQL",
            audit_after: Some(
                600s,
            ),
            start_now: true,
            handler: Http(
                HttpConfig {
                    url: "http://orders.internal/…#5ba76d",
                    timeout: 30s,
                    tries_max: 5,
                    concurrency: 4,
                    body: CloudEvents,
                    gzip: true,
                    accept_html: true,
                    signing_secrets: [
                        SecretBox<[u8]>([REDACTED]),
                        SecretBox<[u8]>([REDACTED]),
                    ],
                    auth: Header {
                        name: "x-api-key",
                        value: SecretBox<str>([REDACTED]),
                    },
                    authorities: Some(
                        File(
                            "certificates/company.pem",
                        ),
                    ),
                },
            ),
            lease: LeaseConfig {
                ttl: 60s,
            },
            limits: LimitsConfig {
                batch_rows_max: 500,
                batches_max: Some(
                    20,
                ),
                handler_stall_max: Some(
                    30s,
                ),
                tick_time_max: 540s,
                count_rows_max: 250,
            },
            flow: Flow {
                prefetch: false,
                overlap_commit: false,
                batch_rows_min: 50,
                follow: None,
            },
            state_refresh: 60s,
            status_interval: None,
            retry_delay_min: 500ms,
            retry_delay_max: 3600s,
            retry_after_max: 7200s,
            policy: FailurePolicy {
                on_failure: Park,
                attempts_max: 7,
                crashes_max: 3,
                record_age_max: Some(
                    43200s,
                ),
                bisect_on_error: true,
                breaker_rows: 20,
                park: ParkPolicy {
                    retries_max: 50,
                    age_max: 259200s,
                    backoff: Backoff {
                        first: 1s,
                        max: 3600s,
                    },
                },
            },
            on_missing_state: Recreate,
            journal: JournalConfig {
                mode: Full,
                retention: None,
            },
        }
    "#]]
    .assert_debug_eq(&read(&[FULL]).pollers["orders"]);
}

#[test]
fn a_full_example_of_the_rest_reads_back_without_any_secret() {
    let config = read(&[FULL]);
    assert!(!format!("{config:?}").contains("hunter2"));
    let rest = Config { pollers: BTreeMap::new(), ..config };
    expect![[r#"
        Config {
            app: "shop",
            state: Blob {
                connection_setting: "StateStorage",
                access: Identity {
                    endpoint: Url {
                        scheme: "https",
                        cannot_be_a_base: false,
                        username: "",
                        password: None,
                        host: Some(
                            Domain(
                                "shopstate.blob.core.windows.net",
                            ),
                        ),
                        port: None,
                        path: "/",
                        query: None,
                        fragment: None,
                    },
                    client_id: Some(
                        "11111111-2222-3333-4444-555555555555",
                    ),
                },
                container: "pollers",
            },
            function_timeout: 600s,
            function_timeout_set: 600s,
            stop_grace: 20s,
            log: "warn,highwater=debug",
            metrics: MetricsConfig {
                address: Some(
                    127.0.0.1:9464,
                ),
            },
            health_is_anonymous: true,
            recovery: RecoveryConfig {
                mode: Report,
                stuck_after: 600s,
                paused_max: 43200s,
            },
            notify: Some(
                NotifyConfig {
                    url: "https://hooks.contoso.com/…#24b5dc",
                    signing_secrets: [
                        SecretBox<[u8]>([REDACTED]),
                    ],
                },
            ),
            pollers: {},
            functions: {
                "ORDERS_TIMER": "orders",
            },
            groups: {},
        }
    "#]]
    .assert_debug_eq(&rest);
}

#[test]
fn every_setting_of_the_table_is_in_the_full_example() {
    // Settings that the full example cannot have together with the others.
    let others = "
        HIGHWATER__FUNCTIONS__ORDERS_TIMER__POLLERS = all
        HIGHWATER__DEFAULTS__LEASE__TTL = 30s
        HIGHWATER__STATE__FOLDER = /tmp/state
        HIGHWATER__STATE__TABLE = t
        HIGHWATER__STATE__JOURNAL_TABLE = j
        HIGHWATER__POLLERS__ORDERS__SOURCE__QUERY = SELECT 1
        HIGHWATER__POLLERS__ORDERS__SOURCE__COLUMNS_EXCLUDED = note
        HIGHWATER__POLLERS__ORDERS__HANDLER__ENV = PATH
        HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_AUDIENCE = api://orders
        HIGHWATER__POLLERS__ORDERS__HANDLER__AUTH_CLIENT_ID = 11111111-2222-3333-4444-555555555555
    ";
    let full = vars(&[FULL, OTHER_KINDS, others]);
    for setting in SETTINGS {
        let of_poller = setting.name_for(Some("ORDERS")).replace("<PARAM>", "LEAST");
        let of_poller = of_poller.replace("<STEP>__<SETTING>", "NOTIFY__KIND");
        let of_poller = of_poller.replace("<SETTING>", "LEASE__TTL");
        let of_function = setting.name_for(Some("ORDERS_TIMER"));
        assert!(full.contains_key(&of_poller) || full.contains_key(&of_function), "{of_poller}");
    }
}

#[test]
fn a_stall_is_longer_than_the_timeout_unless_it_is_set() {
    let seconds = |timeout: &str, stall: &str| {
        let handler = "HIGHWATER__POLLERS__ORDERS__HANDLER__";
        let handler = format!(
            "{handler}KIND = exec\n{handler}COMMAND = true\n\
             {handler}TIMEOUT = {timeout}\n{handler}STALL_MAX = {stall}"
        );
        let set: Vec<&str> = handler.lines().filter(|line| !line.ends_with("= ")).collect();
        let limits = read(&[MINIMAL, &set.join("\n")]).pollers["orders"].limits;
        limits.handler_stall_max.map(|limit| limit.as_secs())
    };
    for (timeout, stall, expected) in [
        ("", "", Some(120)),
        ("90s", "", Some(120)),
        ("3m", "", Some(210)),
        ("3m", "20s", Some(20)),
        ("3m", "2m", Some(120)),
        ("3m", "0", None),
    ] {
        assert_eq!(seconds(timeout, stall), expected, "{timeout} {stall}");
    }
}

#[test]
fn names_of_our_own_functions_are_reserved() {
    for name in ["HIGHWATER_RECOVERY", "HIGHWATER_STATUS"] {
        let mut vars = vars(&[FULL]);
        vars.insert(format!("HIGHWATER__POLLERS__{name}__SOURCE__TABLE"), "t".to_owned());
        let error = Config::from_vars(&vars).unwrap_err().to_string();
        assert!(error.contains(&format!("`HIGHWATER__POLLERS__{name}__…`")), "{error}");
        assert!(error.contains("another name"), "{error}");
    }
}

#[test]
fn every_mistake_is_reported_at_once() {
    let bad = "
        AzureWebJobsStorage =
        HIGHWATER__APP = a/b
        HIGHWATER__STATE__CONTAINER = Db_State
        HIGHWATER__STATE__CONECTION = DefaultEndpointsProtocol=https;AccountKey=hunter2
        HIGHWATER__FUNCTION_TIMEOUT = 00:05:00
        HIGHWATER__LOG = highwater=loud
        HIGHWATER__FUNCTIONS__NIGHTLY__POLLER = order
        HIGHWATER__POLLERS__ORDERS__SOURCE__MODE = row_version
        HIGHWATER__POLLERS__ORDERS__SOURCE__KEY = id,,ID
        HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR =
        HIGHWATER__POLLERS__ORDERS__SOURCE__TABEL = dbo.orders
        HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = webhook
        HIGHWATER__POLLERS__ORDERS__LEASE__TTL = 1s
        HIGHWATER__POLLERS__ORDERS__LEASE__FIRST = true
        HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT = https://contoso.com/?code=hunter2
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = 100001
        HIGHWATER__POLLERS__ORDERS__BATCH_BYTES_MAX = 4MB
        HIGHWATER__POLLERS__ORDERS__BATCHES_MAX = 0
        HIGHWATER__POLLERS__ORDERS__PREFETCH = yes
        HIGHWATER__POLLERS__ORDERS__FOLLOW_INTERVAL = 1ms
        HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX = 240
        HIGHWATER__POLLERS__ORDERS__STATE_REFRESH = soon
        HIGHWATER__POLLERS__ORDERS__STATUS_INTERVAL = 25h
        HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MIN = 0
        HIGHWATER__POLLERS__ORDERS__ON_MISSING_STATE = ignore
        HIGHWATER__POLLERS__stock__SOURCE__TABLE = dbo.stock
        HIGHWATER__POLLERS__stock__SOURCE__KEY = id
        highwater__log = debug
    ";
    check_mistakes(
        &[MINIMAL, bad],
        &expect![[r#"
            27 mistakes in the settings
            setting `AzureWebJobsStorage` is not set, expected a storage connection string, or `AzureWebJobsStorage__accountName` or `AzureWebJobsStorage__blobServiceUri`
              hint: `HIGHWATER__STATE__CONNECTION` can name another connection
            setting `HIGHWATER__APP` is `a/b`, expected up to 100 letters, digits, `-`, `_` and `.`, starting with a letter or digit and not ending with `.`
              see docs/reference/settings.md#app
            setting `HIGHWATER__FUNCTIONS__NIGHTLY__POLLER` is `order`, expected the name of a configured poller: `orders`
              see docs/reference/settings.md#functions-function-poller
            setting `HIGHWATER__FUNCTION_TIMEOUT` is `00:05:00`, expected a duration such as `500ms`, `30s`, `5m` or `1h`, up to 24 hours
              see docs/reference/settings.md#function_timeout
            setting `HIGHWATER__LOG` is `highwater=loud`, expected a log filter such as `info` or `warn,highwater=debug`
              hint: error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5
              see docs/reference/settings.md#log
            setting `HIGHWATER__POLLERS__ORDERS__BATCHES_MAX` is `0`, expected a whole number of at least 1
              see docs/reference/settings.md#batches_max
            setting `HIGHWATER__POLLERS__ORDERS__BATCH_BYTES_MAX` is `4MB`, expected a size of 1 byte to 1024 MiB, such as `4MiB`, `512KiB` or `1000000`
              hint: supported units are `KiB` and `MiB`
              see docs/reference/settings.md#batch_bytes_max
            setting `HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX` is `100001`, expected a whole number from 1 to 100000
              see docs/reference/settings.md#batch_rows_max
            setting `HIGHWATER__POLLERS__ORDERS__FOLLOW_INTERVAL` is `1ms`, expected a duration of at least `10ms`
              see docs/reference/settings.md#follow_interval
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__KIND` is `webhook`, expected `http`, `sql`, `queue`, `blob`, `durable`, `exec`, `stdout` or `chain`
              see docs/reference/settings.md#handler-kind
            setting `HIGHWATER__POLLERS__ORDERS__LEASE__FIRST` was removed
              hint: remove it: ticks acquire the lease only after they found rows
            setting `HIGHWATER__POLLERS__ORDERS__LEASE__TTL` is `1s`, expected a duration of at least `2s`
              see docs/reference/settings.md#lease-ttl
            setting `HIGHWATER__POLLERS__ORDERS__ON_MISSING_STATE` is `ignore`, expected `stop` or `recreate`
              see docs/reference/settings.md#on_missing_state
            setting `HIGHWATER__POLLERS__ORDERS__OVERLAP_COMMIT` is `(not shown)` (33 characters, looks like a connection string or an address with a key), expected `true` or `false`
              see docs/reference/settings.md#overlap_commit
            setting `HIGHWATER__POLLERS__ORDERS__PREFETCH` is `yes`, expected `true` or `false`
              see docs/reference/settings.md#prefetch
            setting `HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MIN` is `0`, expected a duration of at least `1ms`
              see docs/reference/settings.md#retry_delay_min
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__CURSOR` is not set, expected column that grows with every change
              see docs/reference/settings.md#source-cursor
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__KEY` is `id,,ID`, expected names of columns separated by commas, each once
              see docs/reference/settings.md#source-key
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__MODE` is `row_version`, expected `auto`, `rowversion`, `change_tracking`, `timestamp+pk` or `integer+pk`
              hint: did you mean `rowversion`?
              see docs/reference/settings.md#source-mode
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__TABEL` is unknown
              hint: did you mean `HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE`? Rename or remove this setting
            setting `HIGHWATER__POLLERS__ORDERS__STATE_REFRESH` is `soon`, expected a duration such as `500ms`, `30s`, `5m` or `1h`, up to 24 hours
              see docs/reference/settings.md#state_refresh
            setting `HIGHWATER__POLLERS__ORDERS__STATUS_INTERVAL` is `25h`, expected a duration such as `500ms`, `30s`, `5m` or `1h`, up to 24 hours
              see docs/reference/settings.md#status_interval
            setting `HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX` is `240`, expected a duration such as `500ms`, `30s`, `5m` or `1h`, up to 24 hours
              hint: add the unit, as in `240s`
              see docs/reference/settings.md#tick_time_max
            setting `HIGHWATER__POLLERS__stock__…` is unknown, expected the poller's name in upper case: letters, digits and single `_`, starting with a letter
              hint: write `HIGHWATER__POLLERS__STOCK__…`
            setting `HIGHWATER__STATE__CONECTION` is unknown
              hint: did you mean `HIGHWATER__STATE__CONNECTION`? Rename or remove this setting
            setting `HIGHWATER__STATE__CONTAINER` is `Db_State`, expected 3 to 63 lowercase letters, digits and single `-`, not starting or ending with `-`
              see docs/reference/settings.md#state-container
            setting `highwater__log` is unknown
              hint: did you mean `HIGHWATER__LOG`? Rename or remove this setting
        "#]],
    );
}

#[test]
fn in_azure_a_lease_lasts_at_least_15_seconds() {
    const AZURE: &str = "
        AzureWebJobsStorage = DefaultEndpointsProtocol=https;AccountName=prod;AccountKey=aHVudGVyMg==;EndpointSuffix=core.windows.net
    ";
    let ttl = |value: &str| format!("HIGHWATER__POLLERS__ORDERS__LEASE__TTL = {value}");
    let refused = Config::from_vars(&vars(&[MINIMAL, AZURE, &ttl("14s")])).unwrap_err();
    assert!(refused.to_string().contains("expected a duration of at least `15s`"), "{refused}");
    let config = read(&[MINIMAL, AZURE, &ttl("15s")]);
    assert_eq!(config.pollers["orders"].lease.ttl, Duration::from_secs(15));
    // The emulator is for demos and tests.
    let config = read(&[MINIMAL, &ttl("2s")]);
    assert_eq!(config.pollers["orders"].lease.ttl, Duration::from_secs(2));
}

#[test]
fn settings_are_checked_against_each_other() {
    let bad = "
        AzureWebJobsStorage = AccountName=prod;AccountKey=hunter2
        HIGHWATER__FUNCTION_TIMEOUT = 1m
        HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX = 45s
        HIGHWATER__POLLERS__ORDERS__LEASE__TTL = 14s
        HIGHWATER__POLLERS__ORDERS__SOURCE__SETTLE = 5s
        HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER = 5m
        HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MIN = 10m
        HIGHWATER__POLLERS__ORDERS__HANDLER__KIND = http
        HIGHWATER__POLLERS__STOCK__HANDLER__KIND = http
        HIGHWATER__POLLERS__STOCK__HANDLER__TIMEOUT = 45s
        HIGHWATER__POLLERS__STOCK__HANDLER__URL = http://me:hunter2@stock.internal/a?code=hunter2
        HIGHWATER__POLLERS__STOCK__SOURCE__CONNECTION = Server=db;Password=hunter2
        HIGHWATER__POLLERS__STOCK__SOURCE__TABLE = dbo.orders
        HIGHWATER__POLLERS__STOCK__SOURCE__CURSOR = version
        HIGHWATER__POLLERS__STOCK__SOURCE__KEY = id
        HIGHWATER__POLLERS__STOCK__RETRY_DELAY_MIN = 10s
        HIGHWATER__POLLERS__STOCK__RETRY_DELAY_MAX = 5s
    ";
    check_mistakes(
        &[MINIMAL, bad],
        &expect![[r#"
            10 mistakes in the settings
            setting `AzureWebJobsStorage` is `(not shown)`, expected a valid storage connection: `AccountKey` is not base64; copy all of it
            setting `HIGHWATER__POLLERS__ORDERS__HANDLER__URL` is not set, expected absolute URL that batches are posted to; for `durable`, that of the function app
              see docs/reference/settings.md#handler-url
            setting `HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MIN` is `10m`, expected at most `5m`, the value of `HIGHWATER__POLLERS__ORDERS__RETRY_DELAY_MAX`
              see docs/reference/settings.md#retry_delay_min
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__AUDIT_AFTER` is `5m`, expected nothing, since mode `rowversion` has no settle time
              hint: remove it, or set the mode to `timestamp+pk` or `integer+pk`
              see docs/reference/settings.md#source-audit_after
            setting `HIGHWATER__POLLERS__ORDERS__SOURCE__SETTLE` is `5s`, expected nothing, since mode `rowversion` has no settle time
              hint: remove it, or set the mode to `timestamp+pk` or `integer+pk`
              see docs/reference/settings.md#source-settle
            setting `HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX` is `45s`, expected a duration below `45s` (`HIGHWATER__FUNCTION_TIMEOUT` minus 15 seconds)
              see docs/reference/settings.md#tick_time_max
            setting `HIGHWATER__POLLERS__STOCK__HANDLER__TIMEOUT` is `45s`, expected a duration below `45s` (`HIGHWATER__FUNCTION_TIMEOUT` minus 15 seconds)
              hint: raise that setting and `functionTimeout`
              see docs/reference/settings.md#handler-timeout
            setting `HIGHWATER__POLLERS__STOCK__HANDLER__URL` is `http://stock.internal/…#6a50dc`, expected an `https` URL, since the host is not this machine
              hint: set `HIGHWATER__POLLERS__STOCK__HANDLER__ALLOW_HTTP` to `true` to send rows without encryption
              see docs/reference/settings.md#handler-url
            setting `HIGHWATER__POLLERS__STOCK__RETRY_DELAY_MAX` is `5s`, expected at least `10s`, the value of `HIGHWATER__POLLERS__STOCK__RETRY_DELAY_MIN`
              see docs/reference/settings.md#retry_delay_max
            setting `HIGHWATER__POLLERS__STOCK__SOURCE__CONNECTION` is `(not shown)`, expected the name of a setting
              hint: put the connection string into another setting, and the name of that setting here
              see docs/reference/settings.md#source-connection
        "#]],
    );
}

#[test]
fn settings_of_another_handler_kind_are_mistakes_except_with_stdout() {
    let orders = "HIGHWATER__POLLERS__ORDERS__HANDLER__";
    let errors = Config::from_vars(&vars(&[FULL, OTHER_KINDS])).unwrap_err();
    let named: Vec<&str> = errors.0.iter().map(|mistake| mistake.setting.as_str()).collect();
    let expected = vars(&[OTHER_KINDS]);
    assert_eq!(named, expected.keys().map(String::as_str).collect::<Vec<_>>());
    let text = errors.to_string().replace(orders, "…");
    for expected in [
        "`…SYSTEM_KEY` is `(not shown)`, expected nothing, since `…KIND` is `http` and this setting is for `durable`\n",
        "`…CONNECTION` is `(not shown)`, expected nothing, since `…KIND` is `http` and this setting is for `queue`, \
         `blob`, `sql`\n  hint: remove it, or choose that kind",
        "`…STEP__NOTIFY__KIND` is `(not shown)`, expected nothing, since `…KIND` is `http` and this setting is for `chain`",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    read(&[FULL, OTHER_KINDS, &format!("{orders}KIND = stdout")]);
    let queue =
        format!("{orders}KIND = queue\n{orders}QUEUE = changes\n{orders}URL = https://a.example\n");
    let errors = Config::from_vars(&vars(&[MINIMAL, &queue])).unwrap_err().to_string();
    assert!(
        errors.starts_with(&format!("1 mistake in the settings\nsetting `{orders}URL` is")),
        "{errors}"
    );
}

#[test]
fn a_connection_string_with_a_portal_prefix_is_found() {
    let host = |text: &str| {
        let config = read(&[MINIMAL, text]);
        config.pollers["orders"].source.connection.host.clone()
    };
    for prefix in ["SQLAZURECONNSTR_", "SQLCONNSTR_", "CUSTOMCONNSTR_"] {
        let portal =
            format!("{prefix}SQL = Server=tcp:portal.example;Password=s3cret-s3cret;User ID=u");
        let text = format!("SQL =\n{portal}");
        assert_eq!(host(&text), "portal.example");
        let found = secrets(&vars(&[MINIMAL, &text]));
        let is_it = |found: &FoundSecret| found.is_ours && found.value == "s3cret-s3cret";
        assert!(found.iter().any(is_it), "{found:?}");
        let plain = "SQL = Server=tcp:plain.example;User ID=u;Password=p";
        assert_eq!(host(&format!("{plain}\n{portal}")), "plain.example");
    }
}

#[test]
fn missing_handler_settings_are_reported() {
    let orders = "HIGHWATER__POLLERS__ORDERS__HANDLER__";
    let mut texts = String::new();
    for settings in [
        "KIND = exec",
        "KIND = exec\nCOMMAND = load --token 's3cret'\nTIMEOUT = 0",
        "KIND = blob",
        "KIND = blob\nCONTAINER = Changes\nCONNECTION = Target\nTRIES_MAX = 0",
        "KIND = blob\nCONTAINER = changes\nCONNECTION = AccountName=acme;AccountKey=s3cret",
        "KIND = blob\nCONTAINER = changes\nCONNECTION = SQL",
        "KIND = queue\nMESSAGE_EVENTS_MAX = 0\nMESSAGE_ENCODING = utf8\nCONNECTION = Target",
        "KIND = durable\nURL = http://app.example/?code=s3cret\nSYSTEM_KEY = the s3cret",
        "KIND = durable\nURL = https://app.example\nORCHESTRATOR = a/b",
    ] {
        let settings: Vec<String> =
            settings.lines().map(|line| format!("{orders}{line}\n")).collect();
        let errors = Config::from_vars(&vars(&[MINIMAL, &settings.concat()])).unwrap_err();
        texts += &format!("{errors}\n").replace(orders, "…");
    }
    expect![[r#"
        1 mistake in the settings
        setting `…COMMAND` is not set, expected program and arguments, as a JSON array of strings, or as words separated by spaces
          see docs/reference/settings.md#handler-command
        2 mistakes in the settings
        setting `…COMMAND` is `(not shown)`, expected a program and its arguments, such as `/bin/load --fast` or `["/bin/load", "a b"]`
          hint: there is no shell: write quoted words as a JSON array
          see docs/reference/settings.md#handler-command
        setting `…TIMEOUT` is `0`, expected a duration of at least `1ms`
          see docs/reference/settings.md#handler-timeout
        1 mistake in the settings
        setting `…CONTAINER` is not set, expected name of an existing container
          see docs/reference/settings.md#handler-container
        3 mistakes in the settings
        setting `…CONTAINER` is `Changes`, expected 3 to 63 lowercase letters, digits and single `-`, not starting or ending with `-`
          see docs/reference/settings.md#handler-container
        setting `…TRIES_MAX` is `0`, expected a whole number from 1 to 10
          see docs/reference/settings.md#handler-tries_max
        setting `Target` is not set, expected a storage connection string, or `Target__accountName` or `Target__blobServiceUri`
          hint: `…CONNECTION` can name another connection
        1 mistake in the settings
        setting `…CONNECTION` is `(not shown)`, expected the name of a setting
          hint: put the connection string into another setting, and the name of that setting here
          see docs/reference/settings.md#handler-connection
        2 mistakes in the settings
        setting `SQL` is `(not shown)`, expected a valid storage connection: `AccountName` or `BlobEndpoint` is missing
        setting `SQL` is `(not shown)`, expected a valid storage connection: `AccountKey` or `SharedAccessSignature` is missing
        4 mistakes in the settings
        setting `…MESSAGE_ENCODING` is `utf8`, expected `base64` or `none`
          see docs/reference/settings.md#handler-message_encoding
        setting `…MESSAGE_EVENTS_MAX` is `0`, expected a whole number from 1 to 10000
          see docs/reference/settings.md#handler-message_events_max
        setting `…QUEUE` is not set, expected name of an existing queue
          see docs/reference/settings.md#handler-queue
        setting `Target` is not set, expected a storage connection string, or `Target__accountName` or `Target__queueServiceUri`
          hint: `…CONNECTION` can name another connection
        3 mistakes in the settings
        setting `…ORCHESTRATOR` is not set, expected name of the orchestrator function that receives a batch as its input
          see docs/reference/settings.md#handler-orchestrator
        setting `…SYSTEM_KEY` is `(not shown)`, expected only the key `durabletask_extension`
          see docs/reference/settings.md#handler-system_key
        setting `…URL` is `http://app.example`, expected an `https` URL, since the host is not this machine
          hint: set `…ALLOW_HTTP` to `true` to send rows without encryption
          see docs/reference/settings.md#handler-url
        1 mistake in the settings
        setting `…ORCHESTRATOR` is `a/b`, expected a function's name: a letter, then letters, digits, `_`, `-`
          see docs/reference/settings.md#handler-orchestrator
    "#]].assert_eq(&texts);
}

#[test]
fn missing_connections_and_pollers_are_named() {
    check_mistakes(
        &["HIGHWATER__STATE__STORE = file"],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__<NAME>__SOURCE__TABLE` is not set, expected at least one poller
              hint: for example `HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE=dbo.orders`
              see docs/reference/settings.md#source-table
            setting `HIGHWATER__STATE__FOLDER` is not set, expected folder for the state documents
              see docs/reference/settings.md#state-folder
        "#]],
    );
    let without = "AzureWebJobsStorage =\nSQL =\nWEBSITE_SITE_NAME = a b";
    check_mistakes(
        &[MINIMAL, without],
        &expect![[r"
        3 mistakes in the settings
        setting `AzureWebJobsStorage` is not set, expected a storage connection string, or `AzureWebJobsStorage__accountName` or `AzureWebJobsStorage__blobServiceUri`
          hint: `HIGHWATER__STATE__CONNECTION` can name another connection
        setting `SQL` is not set, expected an ADO.NET connection string
          hint: `HIGHWATER__POLLERS__ORDERS__SOURCE__CONNECTION` refers to this setting
        setting `WEBSITE_SITE_NAME` is `a b`, expected up to 100 letters, digits, `-`, `_` and `.`, starting with a letter or digit and not ending with `.`
          hint: set `HIGHWATER__APP` instead
    "]],
    );
    let identity = "
        HIGHWATER__STATE__CONNECTION = Identity
        Identity__blobServiceUri = https://prod.blob.core.windows.net/
        Identity__credential = secret
    ";
    check_mistakes(
        &[MINIMAL, identity],
        &expect![[r"
            1 mistake in the settings
            setting `Identity__credential` is `(not shown)`, expected `managedidentity`, or nothing
        "]],
    );
}

#[test]
fn the_shorter_limit_of_settings_and_host_applies() {
    let host = |seconds: Option<u64>| FunctionTimeout {
        limit: seconds.map(Duration::from_secs),
        set_by: "host.json: functionTimeout".to_owned(),
        text: Some("00:00:20".to_owned()),
    };
    let under = |host: &FunctionTimeout, texts: &[&str]| {
        Config::from_vars_under(&vars(&[&[MINIMAL][..], texts].concat()), Some(host))
    };
    for (seconds, timeout, tick_time) in
        [(Some(60), 60, 44), (Some(21), 21, 5), (Some(900), 300, 240), (None, 300, 240)]
    {
        let config = under(&host(seconds), &[]).unwrap();
        let limits = config.pollers["orders"].limits;
        assert_eq!(config.function_timeout.as_secs(), timeout, "{seconds:?}");
        assert_eq!(config.function_timeout_set.as_secs(), 300, "{seconds:?}");
        assert_eq!(limits.tick_time_max.as_secs(), tick_time, "{seconds:?}");
    }
    // A tick time that exceeds only the host's limit is shortened, not rejected: the operator may not control the
    // host.
    let long = "HIGHWATER__POLLERS__ORDERS__TICK_TIME_MAX = 2m";
    let config = under(&host(Some(60)), &[long]).unwrap();
    assert_eq!(config.pollers["orders"].limits.tick_time_max.as_secs(), 44);
    let errors = under(&host(Some(20)), &["HIGHWATER__STATE__STORE = tape"]).unwrap_err();
    let text = errors.to_string();
    assert!(text.contains("2 mistakes") && text.contains("`tape`"), "{text}");
    let expected = "setting `host.json: functionTimeout` is `00:00:20`, expected more than `20s`";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn the_default_tick_time_follows_a_short_function_timeout() {
    for (timeout, seconds) in [("21s", 5), ("60s", 44), ("4m", 224), ("256s", 240), ("10m", 240)] {
        let config = read(&[MINIMAL, &format!("HIGHWATER__FUNCTION_TIMEOUT = {timeout}")]);
        let limits = config.pollers["orders"].limits;
        assert_eq!(limits.tick_time_max, Duration::from_secs(seconds), "{timeout}");
    }
}

#[test]
fn the_application_defaults_to_the_site() {
    assert_eq!(read(&[MINIMAL]).app, "local");
    assert_eq!(read(&[MINIMAL, "WEBSITE_SITE_NAME = my-site"]).app, "my-site");
    let both = "WEBSITE_SITE_NAME = my-site\nHIGHWATER__APP = shop";
    assert_eq!(read(&[MINIMAL, both]).app, "shop");
}

#[test]
fn a_function_runs_the_poller_of_its_name_or_a_configured_one() {
    let config = read(&[MINIMAL, "HIGHWATER__FUNCTIONS__NIGHTLY_RUN__POLLER = orders"]);
    for (folder, runs) in
        [("orders", true), ("Orders", true), ("nightly-run", true), ("NightlyRun", false)]
    {
        let name = config.poller_of_function(folder).map(|poller| poller.name.as_str());
        assert_eq!(name, runs.then_some("orders"), "{folder}");
    }
}

/// Names of the pollers that each function runs.
fn runs(config: &Config, folders: &[&str]) -> Vec<(String, Vec<String>)> {
    let names = |pollers: Vec<&PollerConfig>| {
        pollers.into_iter().map(|poller| poller.name.clone()).collect::<Vec<String>>()
    };
    let by_function = config.pollers_by_function(folders.iter().copied());
    by_function.into_iter().map(|(folder, it)| (folder.to_owned(), names(it))).collect()
}

#[test]
fn one_function_can_run_all_pollers_that_no_other_function_runs() {
    let other = MINIMAL.replace("ORDERS", "STOCK");
    let third = MINIMAL.replace("ORDERS", "USERS");
    let all = "HIGHWATER__FUNCTIONS__POLL__POLLERS = all";
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let config = read(&[MINIMAL, &other, &third, all]);
    assert_eq!(runs(&config, &["poll"])[0].1, named(&["orders", "stock", "users"]));
    assert!(config.poller_of_function("poll").is_none());
    let needed = config.required_functions();
    let needed: Vec<_> = needed.iter().map(|it| (it.folder.as_str(), it.parent)).collect();
    assert_eq!(needed, [("poll", "POLL")]);

    // A poller with its own folder, and one that another function is set to run.
    let nightly = "HIGHWATER__FUNCTIONS__NIGHTLY__POLLER = users";
    let config = read(&[MINIMAL, &other, &third, all, nightly]);
    let folders = ["nightly", "poll", "stock"];
    assert_eq!(
        runs(&config, &folders),
        [
            ("nightly".to_owned(), named(&["users"])),
            ("poll".to_owned(), named(&["orders"])),
            ("stock".to_owned(), named(&["stock"])),
        ]
    );

    // A list contains pollers; the name of a partitioned poller selects its partitions.
    let list = "HIGHWATER__FUNCTIONS__BOTH__POLLERS = stock, orders";
    let two = "HIGHWATER__POLLERS__ORDERS__PARTITIONS = 2";
    let config = read(&[MINIMAL, &other, &third, list, two]);
    assert_eq!(runs(&config, &["both"])[0].1, named(&["orders__p0", "orders__p1", "stock"]));
    let needed = config.required_functions();
    let needed: Vec<_> = needed.iter().map(|it| it.folder.as_str()).collect();
    assert_eq!(needed, ["users", "both"]);
}

#[test]
fn a_list_of_pollers_must_name_existing_pollers_and_excludes_a_single_poller() {
    let bad = "
        HIGHWATER__FUNCTIONS__NIGHTLY__POLLERS = orders,stok
        HIGHWATER__FUNCTIONS__POLL__POLLER = orders
        HIGHWATER__FUNCTIONS__POLL__POLLERS = all
    ";
    check_mistakes(
        &[MINIMAL, bad],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__FUNCTIONS__NIGHTLY__POLLERS` is `orders,stok`, expected `all`, or names of pollers separated by commas: `orders`
              see docs/reference/settings.md#functions-function-pollers
            setting `HIGHWATER__FUNCTIONS__POLL__POLLERS` is `all`, expected nothing, since `HIGHWATER__FUNCTIONS__POLL__POLLER` is set; remove one of them
              see docs/reference/settings.md#functions-function-pollers
        "#]],
    );
}

#[test]
fn each_partition_is_a_poller_with_its_own_function() {
    let four = "HIGHWATER__POLLERS__ORDERS__PARTITIONS = 2";
    let config = read(&[MINIMAL, four, "HIGHWATER__FUNCTIONS__NIGHTLY_RUN__POLLER = orders__p1"]);
    let part = |index| Some(Partition { index, count: 2 });
    let parts: Vec<_> =
        config.pollers.iter().map(|(name, it)| (name.as_str(), it.source.partition)).collect();
    assert_eq!(parts, [("orders__p0", part(0)), ("orders__p1", part(1))]);
    assert!(config.pollers.iter().all(|(name, poller)| poller.name == *name));
    let runs = |folder| config.poller_of_function(folder).map(|poller| poller.name.as_str());
    assert_eq!(runs("orders__p0"), Some("orders__p0"));
    assert_eq!(runs("nightly-run"), Some("orders__p1"));
    assert_eq!(runs("orders"), None, "it would deliver the rows of its partitions again");
    let needed = config.required_functions();
    let needed: Vec<_> =
        needed.iter().map(|it| (it.folder.as_str(), it.poller, it.parent)).collect();
    assert_eq!(
        needed,
        [("orders__p0", "orders__p0", "orders"), ("nightly_run", "orders__p1", "orders")]
    );
    let unpartitioned = read(&[MINIMAL]);
    assert_eq!(unpartitioned.required_functions()[0].folder, "orders");
}

#[test]
fn the_settings_reference_lists_each_setting_once_with_an_anchor() {
    let table = settings_table();
    let rows = || table.lines().filter(|line| line.starts_with("| <a id="));
    assert_eq!(rows().count(), SETTINGS.len());
    assert!(rows().all(|line| line.ends_with(" |")));
    let anchors: BTreeSet<_> = rows().map(|line| line.split('"').nth(1).unwrap()).collect();
    assert_eq!(anchors.len(), SETTINGS.len(), "{anchors:?}");
    assert!(table.contains("| <a id=\"lease-ttl\"></a>`LEASE__TTL` | `60s` | How long"));
    let modes = [CursorMode::RowVersion, CursorMode::TimestampPk];
    assert!(modes.iter().all(|mode| table.contains(&format!("`{mode}`"))));
    let advanced = table.matches(": advanced\n").count();
    assert!(advanced >= 4, "{advanced}");
}

const SQL_STATE: &str = "
    AzureWebJobsStorage =
    HIGHWATER__STATE__STORE = sql
    HIGHWATER__STATE__CONNECTION = SQL
";

#[test]
fn state_in_a_table_needs_its_own_connection_and_no_storage_account() {
    let config = read(&[MINIMAL, SQL_STATE, "HIGHWATER__POLLERS__ORDERS__LEASE__TTL = 2s"]);
    let StateConfig::Sql { connection_setting, connection, table, journal_table } = config.state
    else {
        panic!("{:?}", config.state);
    };
    assert_eq!(journal_table, "dbo.highwater_journal");
    assert_eq!(connection_setting, "SQL");
    assert_eq!(connection.database.as_deref(), Some("shop"));
    assert_eq!(table, "dbo.highwater_state");
    let named = read(&[MINIMAL, SQL_STATE, "HIGHWATER__STATE__TABLE = ops.state"]);
    assert!(matches!(named.state, StateConfig::Sql { table, .. } if table == "ops.state"));

    check_mistakes(
        &[MINIMAL, SQL_STATE, "HIGHWATER__STATE__CONNECTION ="],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__STATE__CONNECTION` is not set, expected the name of a setting with an ADO.NET connection string
              hint: `HIGHWATER__STATE__STORE` is `sql`, which has no default for this
              see docs/reference/settings.md#state-connection
        "#]],
    );
    check_mistakes(
        &[MINIMAL, SQL_STATE, "HIGHWATER__STATE__CONNECTION = NONE"],
        &expect![[r#"
        1 mistake in the settings
        setting `NONE` is not set, expected an ADO.NET connection string
          hint: `HIGHWATER__STATE__CONNECTION` refers to this setting
    "#]],
    );
    check_mistakes(
        &[
            MINIMAL,
            SQL_STATE,
            "HIGHWATER__STATE__CONNECTION = REPLICA\nREPLICA = Server=db;Database=shop;\
             User Id=me;Password=hunter2;ApplicationIntent=ReadOnly",
        ],
        &expect![[r#"
            1 mistake in the settings
            setting `REPLICA` is `(not shown)`, expected a valid connection string: `ApplicationIntent` must not be `ReadOnly`, since state is written
        "#]],
    );
}

#[test]
fn park_bisects_by_default_and_limits_without_effect_are_rejected() {
    let policy = |text: &str| read(&[MINIMAL, text]).pollers["orders"].policy;
    assert!(policy("HIGHWATER__POLLERS__ORDERS__ON_FAILURE = park").bisect_on_error);
    assert!(!policy("HIGHWATER__POLLERS__ORDERS__ON_FAILURE = stop").bisect_on_error);
    let disabled = "HIGHWATER__POLLERS__ORDERS__ON_FAILURE = park
                HIGHWATER__POLLERS__ORDERS__BISECT_ON_ERROR = false";
    assert!(!policy(disabled).bisect_on_error);
    let retry = "HIGHWATER__POLLERS__ORDERS__BISECT_ON_ERROR = true
                 HIGHWATER__POLLERS__ORDERS__ATTEMPTS_MAX = 2";
    assert_eq!(policy(retry).attempts_max, 2);
    let vars = vars(&[MINIMAL, "HIGHWATER__POLLERS__ORDERS__ATTEMPTS_MAX = 2"]);
    let text = Config::from_vars(&vars).unwrap_err().to_string();
    assert!(text.contains("ATTEMPTS_MAX` is `2`, expected no value while"), "{text}");
}

#[test]
fn parked_keys_are_retried_within_limits_and_their_attempts_are_made_while_they_are_parked() {
    let policy = |text: &str| read(&[MINIMAL, text]).pollers["orders"].policy;
    let park = "HIGHWATER__POLLERS__ORDERS__ON_FAILURE = park";
    let by_default = policy(park);
    assert_eq!((by_default.attempts_max, by_default.park), (1, ParkPolicy::default()));
    let attempts = format!("{park}\nHIGHWATER__POLLERS__ORDERS__ATTEMPTS_MAX = 4");
    assert_eq!(policy(&attempts).attempts_max, 4);
    let at_once = policy(&format!("{park}\nHIGHWATER__POLLERS__ORDERS__PARK_RETRIES_MAX = 0"));
    assert_eq!((at_once.attempts_max, at_once.park.retries()), (5, false));
    let limits = "HIGHWATER__POLLERS__ORDERS__PARK_RETRIES_MAX = 9
                  HIGHWATER__POLLERS__ORDERS__PARK_AGE_MAX = 2h";
    let limited = policy(&format!("{park}\n{limits}")).park;
    assert_eq!((limited.retries_max, limited.age_max), (9, Duration::from_secs(7_200)));
    check_mistakes(
        &[MINIMAL, limits, "HIGHWATER__POLLERS__ORDERS__ON_FAILURE = stop"],
        &expect![[r#"
            2 mistakes in the settings
            setting `HIGHWATER__POLLERS__ORDERS__PARK_AGE_MAX` is `2h`, expected no value while `HIGHWATER__POLLERS__ORDERS__ON_FAILURE` is not `park`
              see docs/reference/settings.md#park_age_max
            setting `HIGHWATER__POLLERS__ORDERS__PARK_RETRIES_MAX` is `9`, expected no value while `HIGHWATER__POLLERS__ORDERS__ON_FAILURE` is not `park`
              see docs/reference/settings.md#park_retries_max
        "#]],
    );
    check_mistakes(
        &[MINIMAL, "HIGHWATER__POLLERS__ORDERS__ON_FAILURE = quarantine"],
        &expect![[r#"
            1 mistake in the settings
            setting `HIGHWATER__POLLERS__ORDERS__ON_FAILURE` is `quarantine`, expected `park`; rows that must wait for an operator at once also need `PARK_RETRIES_MAX` = `0`
              see docs/reference/settings.md#on_failure
        "#]],
    );
}
