use super::*;

const TWO: &str = "
    AzureWebJobsStorage = UseDevelopmentStorage=true
    SQL = Server=db;Database=shop;User Id=me;Password=hunter2
    HIGHWATER__DEFAULTS__SOURCE__CONNECTION = SQL
    HIGHWATER__DEFAULTS__SOURCE__CURSOR = version
    HIGHWATER__DEFAULTS__SOURCE__KEY = id
    HIGHWATER__DEFAULTS__HANDLER__KIND = http
    HIGHWATER__DEFAULTS__HANDLER__URL = https://shop.contoso.com/changes
    HIGHWATER__DEFAULTS__BATCH_ROWS_MAX = 500
    HIGHWATER__POLLERS__ORDERS__SOURCE__TABLE = dbo.orders
    HIGHWATER__POLLERS__CUSTOMERS__SOURCE__TABLE = dbo.customers
    HIGHWATER__POLLERS__CUSTOMERS__SOURCE__KEY = customer_id
    HIGHWATER__POLLERS__CUSTOMERS__BATCH_ROWS_MAX = 20
";

fn errors(parts: &[&str]) -> String {
    Config::from_vars(&vars(parts)).unwrap_err().to_string()
}

#[test]
fn settings_of_all_pollers_are_set_once() {
    let config = read(&[TWO]);
    let [customers, orders] = ["customers", "orders"].map(|name| &config.pollers[name]);
    assert_eq!(config.pollers.len(), 2);
    for poller in [customers, orders] {
        assert_eq!(poller.connection_setting, "SQL");
        let HandlerConfig::Http(http) = &poller.handler else { panic!("{:?}", poller.handler) };
        assert_eq!(http.url.as_str(), "https://shop.contoso.com/changes");
    }
    assert_eq!(
        (&orders.source.key[..], &customers.source.key[..]),
        (&["id".to_owned()][..], &["customer_id".to_owned()][..])
    );
}

#[test]
fn a_pollers_own_setting_takes_precedence_over_that_of_all() {
    let config = read(&[TWO]);
    assert_eq!(config.pollers["orders"].limits.batch_rows_max, 500);
    assert_eq!(config.pollers["customers"].limits.batch_rows_max, 20);
    // A blank one counts as not set.
    let blank = "HIGHWATER__POLLERS__CUSTOMERS__BATCH_ROWS_MAX = ";
    assert_eq!(read(&[TWO, blank]).pollers["customers"].limits.batch_rows_max, 500);
}

#[test]
fn a_mistake_in_a_setting_of_all_pollers_is_reported_once_by_its_name() {
    let wrong = "HIGHWATER__DEFAULTS__LEASE__TTL = soon";
    let errors = errors(&[TWO, wrong]);
    assert!(errors.starts_with("1 mistake in the settings\n"), "{errors}");
    assert!(errors.contains("setting `HIGHWATER__DEFAULTS__LEASE__TTL` is `soon`"), "{errors}");
}

#[test]
fn a_setting_of_all_pollers_may_be_without_effect_for_some() {
    // Neither `sql` nor `change_tracking` uses the URL, the cursor column and the settle time.
    let tracked = "
        HIGHWATER__POLLERS__CUSTOMERS__SOURCE__MODE = change_tracking
        HIGHWATER__POLLERS__CUSTOMERS__HANDLER__KIND = sql
        HIGHWATER__POLLERS__CUSTOMERS__HANDLER__CONNECTION = SQL
        HIGHWATER__POLLERS__CUSTOMERS__HANDLER__TABLE = dbo.copy
        HIGHWATER__DEFAULTS__SOURCE__SETTLE = 9s
        HIGHWATER__DEFAULTS__PARK_AGE_MAX = 2d
    ";
    let config = read(&[TWO, tracked]);
    assert!(matches!(config.pollers["customers"].handler, HandlerConfig::Sql(_)));
    // A poller's own setting without effect is a mistake.
    let own = "HIGHWATER__POLLERS__CUSTOMERS__SOURCE__SETTLE = 9s";
    let errors = errors(&[TWO, tracked, own]);
    assert!(errors.contains("CUSTOMERS__SOURCE__SETTLE` is `9s`, expected nothing"), "{errors}");
}

#[test]
fn settings_that_pollers_cannot_share_are_mistakes() {
    for (setting, hint) in [
        ("SOURCE__TABLE", "it differs between pollers: set it for each of them"),
        ("SOURCE__FILTER_PARAMS__X", "it differs between pollers: set it for each of them"),
        ("HANDLER__STEP__A__URL", "it differs between pollers: set it for each of them"),
        ("LEASE__TTTL", "did you mean `HIGHWATER__DEFAULTS__LEASE__TTL`?"),
        ("WHATEVER", "remove it"),
    ] {
        let errors = errors(&[TWO, &format!("HIGHWATER__DEFAULTS__{setting} = 1")]);
        let expected =
            format!("setting `HIGHWATER__DEFAULTS__{setting}` is unknown\n  hint: {hint}");
        assert!(errors.contains(&expected), "{errors}");
    }
}

#[test]
fn the_values_that_are_shown_have_their_origin() {
    let values = set_values(&vars(&[TWO]), false);
    let shown = |setting: &str| {
        let value = values.iter().find(|value| value.setting == setting).unwrap();
        (value.value.clone(), value.from.clone())
    };
    let shared = "HIGHWATER__DEFAULTS__BATCH_ROWS_MAX";
    let of = |poller: &str| format!("HIGHWATER__POLLERS__{poller}__BATCH_ROWS_MAX");
    assert_eq!(shown(shared), ("500".to_owned(), None));
    assert_eq!(shown(&of("ORDERS")), ("500".to_owned(), Some(shared.to_owned())));
    assert_eq!(shown(&of("CUSTOMERS")), ("20".to_owned(), None));
    let url = shown("HIGHWATER__POLLERS__ORDERS__HANDLER__URL").0;
    assert!(url.starts_with("https://shop.contoso.com/…#"), "{url}");
}

#[test]
fn each_mistake_names_the_place_that_explains_its_setting() {
    let wrong = "
        HIGHWATER__POLLERS__ORDERS__BATCH_ROWS_MAX = x
        HIGHWATER__POLLERS__ORDERS__HANDLER__STEP__A__TIMEOUT = x
        HIGHWATER__DEFAULTS__LEASE__TTL = x
        HIGHWATER__STOP_GRACE = x
        HIGHWATER__FUNCTIONS__NIGHTLY__POLLER = x
    ";
    let mistakes = Config::from_vars(&vars(&[TWO, wrong])).unwrap_err();
    let pages: Vec<String> = mistakes.0.iter().filter_map(Mistake::page).collect();
    for anchor in [
        "batch_rows_max",
        "handler-timeout",
        "lease-ttl",
        "stop_grace",
        "functions-function-poller",
    ] {
        let page = format!("docs/reference/settings.md#{anchor}");
        assert!(pages.contains(&page), "{page}: {pages:?}");
    }
    let text = mistakes.to_string();
    assert!(text.contains("\n  see docs/reference/settings.md#batch_rows_max"), "{text}");
}
