//! Every behaviour of the catalogues' conformance suite, and what only databases have.

use std::sync::Arc;

use osmosis_store::conformance::TestResult;
use osmosis_store::conformance::catalogue as behaviours;
use osmosis_store::{
    Catalogue as _, RunKind, StoreError, StoreErrorKind, StoreUrl, for_each_catalogue_behaviour,
};
use osmosis_store_postgres::PostgresOptions;
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue, catalogue_at, client, run};

macro_rules! each {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() -> TestResult {
            let server = PostgresServer::start();
            behaviours::$name(Arc::new(catalogue(&server))).await
        }
    )*};
}
for_each_catalogue_behaviour!(each);

#[tokio::test]
async fn tables_of_another_version_are_left_alone() {
    let server = PostgresServer::start();
    let catalogue = catalogue(&server);
    catalogue
        .create(&run("x"))
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    let sql = client(&server.url()).await;
    for version in [0, 99] {
        let change = format!("UPDATE osmosis.schema_version SET version = {version}");
        sql.batch_execute(&change).await.unwrap();
        let errors = [
            catalogue.list(RunKind::Evaluation).await.unwrap_err(),
            catalogue.open_read_only(&run("x")).await.unwrap_err(),
            catalogue.open(&run("x")).await.unwrap_err(),
        ];
        for error in errors {
            let StoreError::SchemaVersion { found, known, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!((*found, *known), (version, 3));
            assert!(error.hint().is_some());
        }
    }
    let error = catalogue.create(&run("y")).await.unwrap_err();
    assert!(matches!(error, StoreError::SchemaVersion { .. }), "{error}");
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named_with_what_to_do_and_without_the_password() {
    let server = PostgresServer::start();
    let options = || PostgresOptions {
        retry_for: std::time::Duration::from_millis(300),
        ..PostgresOptions::default()
    };
    let catalogue = catalogue_at(&server.url_as("postgres:s3cret", "missing"), options());
    let error = catalogue.list(RunKind::Evaluation).await.unwrap_err();
    let told = format!("{error} {error:?} {catalogue:?}");
    assert!(told.contains("createdb"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");

    let wrong = catalogue_at(&server.url_as("nobody:s3cret", "postgres"), options());
    let error = wrong
        .list(RunKind::Evaluation)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("PGPASSWORD") && !error.contains("s3cret"),
        "{error}"
    );

    server.crash();
    let error = catalogue.list(RunKind::Evaluation).await.unwrap_err();
    assert!(error.to_string().contains("can't connect"), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[test]
fn another_scheme_is_refused() {
    let url = StoreUrl::parse("file:///workspace").unwrap();
    let refused = osmosis_store_postgres::PostgresCatalogue::at(&url, PostgresOptions::default())
        .unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::InvalidUrl);
}
