//! What was probably meant: values of settings and names of tables.

use crate::bench::Bench;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_does_not_exist_is_named_with_a_similar_one() {
    let bench = Bench::new().await;
    bench.database.execute("CREATE SCHEMA sales").unwrap();
    let table =
        "CREATE TABLE sales.customers (id int NOT NULL PRIMARY KEY, rv rowversion NOT NULL)";
    bench.database.execute(table).unwrap();
    let out = bench.folder.path().join("new").to_str().unwrap().to_owned();
    for (table, meant) in [
        ("dbo.order", Some("dbo.orders")),
        ("ordres", Some("dbo.orders")),
        ("customers", Some("sales.customers")),
        ("dbo.shipments", None),
    ] {
        let said = bench.command(&["init", "shop", "--table", table, "--out", &out]).await;
        said.failed(3, "not found, or the login may not see it");
        let meant = meant.map(|meant| format!("did you mean `{meant}`?"));
        match &meant {
            Some(meant) => assert!(said.rest.contains(meant), "{said:?}"),
            None => assert!(!said.rest.contains("did you mean"), "{said:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_nearly_right_is_named_with_the_right_one() {
    let mut bench = Bench::new().await;
    bench.set("ON_FAILURE", "parc");
    bench.command(&["status"]).await.failed(3, "did you mean `park`?");
}
