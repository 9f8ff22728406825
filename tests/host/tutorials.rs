//! The tutorials, run line by line: from a table to a function in each language.

use highwater_test_support::root;

use crate::bench::{LIMIT, within};
use crate::dev::{FUNC, free_port, stand_in};
use crate::receiver_projects::path_with_node;
use crate::walkthrough::{Differences, Followed, Server, follow};

/// The port of receivers on the pages.
const PORT: &str = "7072";

/// Follows a tutorial, whose poller has this name, on a free port and with a tick every second.
async fn run(page: &str, poller: &str, with: Differences<'_>) -> Followed {
    let page = std::fs::read_to_string(root().join("docs/tutorials").join(page)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().to_string();
    let url = format!("http://127.0.0.1:{port}/api/{poller}");
    let upper = poller.to_uppercase();
    let change = |text: &str| text.replace(PORT, &port);
    let environment = [
        (&*format!("HIGHWATER__POLLERS__{upper}__HANDLER__URL"), url.as_str()),
        (&*format!("{upper}_SCHEDULE"), "* * * * * *"),
    ];
    let with = Differences { change: &change, environment: &environment, ..with };
    follow(&page, folder.path(), with).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_tutorial_delivers_rows_to_its_function() {
    let followed = run("python.md", "flights", Differences::none()).await;
    assert_eq!((followed.compared, followed.skipped), (6, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_typescript_tutorial_delivers_rows_to_its_function() {
    let with = Differences { path: path_with_node().await, ..Differences::none() };
    let followed = run("typescript.md", "flights", with).await;
    assert_eq!((followed.compared, followed.skipped), (6, 0));
}

/// `func` is a stand-in, which accepts every batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_csharp_tutorial_posts_rows_to_its_function() {
    let folder = tempfile::tempdir().unwrap();
    let with = Differences {
        path: stand_in(folder.path(), "func", &FUNC.replace("[503]", "[]")),
        missing: &["docker", "dotnet"],
        server: Some(within(LIMIT, Server::start("highwater devdb --sql -")).await),
        ..Differences::none()
    };
    let followed = run("csharp.md", "orders", with).await;
    assert_eq!((followed.compared, followed.skipped), (3, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_for_many_tables_shows_what_the_program_prints() {
    let page = std::fs::read_to_string(root().join("docs/how-to/many-tables.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut server = within(LIMIT, Server::start("highwater devdb --sql -")).await;
    for table in ["orders", "customers"] {
        let columns = "(id int NOT NULL PRIMARY KEY, version rowversion NOT NULL)";
        within(LIMIT, server.run(&format!("CREATE TABLE dbo.{table} {columns}"))).await;
    }
    // In a source tree, `package` builds the handler.
    let missing = &["highwater --settings shop/local.settings.json package"];
    let with = Differences { missing, server: Some(server), ..Differences::none() };
    let followed = follow(&page, folder.path(), with).await;
    assert_eq!((followed.compared, followed.skipped), (2, 1));
}
