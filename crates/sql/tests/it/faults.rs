//! What happens to PostgreSQL, and what a caller sees of it.

use std::time::{Duration, Instant};

use drawbridge_auth::records::{Records as _, RecordsError};
use drawbridge_sql::{SqlOptions, SqlRecords};
use drawbridge_testkit::fault_proxy::{Fault, FaultProxy};
use drawbridge_testkit::postgres::{PostgresDatabase, PostgresServer};
use drawbridge_testkit::{PATIENCE, eventually};
use tempfile::TempDir;

use crate::fixture::{at, claims, grant, present, refresh, user};

/// Short times, so that the tests are.
fn hasty() -> SqlOptions {
    SqlOptions {
        max_connections: 2,
        acquire_timeout: Duration::from_millis(1500),
        statement_timeout: Duration::from_secs(1),
    }
}

/// The longest a call may take then: a connection, two statements, and what the machine is slow by.
const LONGEST: Duration = Duration::from_secs(8);

/// Records with these short times, in a database that was made ready at leisure.
async fn ready(server: &PostgresServer, database: &str, url: &str, options: &SqlOptions) -> SqlRecords {
    let patient = SqlRecords::open(&server.url(database), &SqlOptions::default()).unwrap();
    patient.migrate().await.unwrap();
    user(&patient, "u1").await;
    patient.redeem(&grant("g1", "u1"), Some(&refresh("r1"))).await.unwrap();
    patient.close().await;
    SqlRecords::open(url, options).unwrap()
}

/// That a call is answered in time, and how.
async fn unavailable(records: &SqlRecords) -> String {
    let begun = Instant::now();
    let error = records.user("u1").await.unwrap_err();
    assert!(begun.elapsed() < LONGEST, "it took {:?}", begun.elapsed());
    let RecordsError::Unavailable(text) = error else { panic!("{error}") };
    text
}

#[tokio::test]
async fn a_server_that_was_killed_is_back_with_the_next_call() {
    let mut server = PostgresServer::start().await;
    server.create_database("records");
    let records = ready(&server, "records", &server.url("records"), &hasty()).await;
    let before = records.user("u1").await.unwrap().unwrap();
    for _ in 0..2 {
        server.kill();
        let text = unavailable(&records).await;
        assert!(!text.contains("correct-horse"), "{text}");
        assert!(records.ping().await.is_err());
        server.restart().await;
        assert_eq!(records.user("u1").await.unwrap().as_ref(), Some(&before));
    }
    // Also without a call in between.
    server.kill();
    server.restart().await;
    assert_eq!(records.user("u1").await.unwrap().as_ref(), Some(&before));
}

#[tokio::test]
async fn an_instance_starts_while_the_server_is_away() {
    let mut server = PostgresServer::start().await;
    server.create_database("records");
    server.kill();
    let records = SqlRecords::open(&server.url("records"), &hasty()).unwrap();
    unavailable(&records).await;
    assert!(records.migrate().await.is_err());
    server.restart().await;
    records.migrate().await.unwrap();
    user(&records, "u1").await;
}

#[tokio::test]
async fn a_network_that_falls_silent_holds_nobody_and_no_connection() {
    let database = PostgresDatabase::fresh().await;
    let proxy = FaultProxy::start(database.server.port()).await;
    let url = database.url().replace(&format!(":{}/", database.server.port()), &format!(":{}/", proxy.port));
    let records = ready(&database.server, database.name(), &url, &hasty()).await;
    let before = records.user("u1").await.unwrap().unwrap();
    proxy.set(Fault::Silence);
    // More calls than there are connections.
    for _ in 0..3 {
        let (one, two) = tokio::join!(unavailable(&records), unavailable(&records));
        assert!(!format!("{one}{two}").contains("correct-horse"));
    }
    proxy.set(Fault::None);
    assert_eq!(records.user("u1").await.unwrap(), Some(before));
}

#[tokio::test]
async fn an_answer_that_never_comes_costs_its_connection_alone() {
    let database = PostgresDatabase::fresh().await;
    let proxy = FaultProxy::start(database.server.port()).await;
    let url = database.url().replace(&format!(":{}/", database.server.port()), &format!(":{}/", proxy.port));
    let options = SqlOptions { statement_timeout: Duration::from_secs(2), ..hasty() };
    let longest = LONGEST + 2 * options.statement_timeout;
    let records = ready(&database.server, database.name(), &url, &options).await;
    // Somebody else has the grant, and keeps it.
    let statements = ["begin", "select 1 from grants for update", "select pg_sleep(60)"];
    let mut locker = database.psql().args(statements.iter().flat_map(|sql| ["-c", sql])).spawn().unwrap();
    eventually(PATIENCE, async || {
        database.run("select count(*) from pg_stat_activity where query like 'select pg_sleep%'") == "1"
    })
    .await;
    let begun = Instant::now();
    let error = records.refresh(&present("r1", "r2", at(10))).await.unwrap_err();
    assert!(matches!(error, RecordsError::Unavailable(_)), "{error}");
    assert!(begun.elapsed() < longest, "it took {:?}", begun.elapsed());
    // A caller who leaves takes its connection along, too.
    for _ in 0..5 {
        let gone =
            tokio::time::timeout(Duration::from_millis(50), records.revoke_grant("g1", "x", at(1))).await;
        assert!(gone.is_err());
    }
    assert!(records.user("u1").await.unwrap().is_some());
    // The network falls silent while the server works for as many as there are connections.
    let waiting = "select count(*) from pg_stat_activity \
                   where application_name = 'drawbridge' and wait_event_type = 'Lock'";
    eventually(PATIENCE, async || database.run(waiting) == "0").await;
    let begun = Instant::now();
    let revoke = async || records.revoke_grant("g1", "x", at(1)).await.unwrap_err();
    let silence = async {
        eventually(PATIENCE, async || database.run(waiting) == "2").await;
        proxy.set(Fault::Silence);
    };
    let (one, two, ()) = tokio::join!(revoke(), revoke(), silence);
    assert!(
        matches!((&one, &two), (RecordsError::Unavailable(_), RecordsError::Unavailable(_))),
        "{one} {two}"
    );
    assert!(begun.elapsed() < longest, "it took {:?}", begun.elapsed());
    proxy.set(Fault::None);
    assert!(records.user("u1").await.unwrap().is_some());
    database
        .run("select pg_terminate_backend(pid) from pg_stat_activity where query like 'select pg_sleep%'");
    let _ = locker.wait();
    records.refresh(&present("r1", "r2", at(10))).await.unwrap();
}

#[tokio::test]
async fn connections_are_no_more_than_allowed() {
    let database = PostgresDatabase::fresh().await;
    let options = SqlOptions { max_connections: 3, ..SqlOptions::default() };
    let records = std::sync::Arc::new(SqlRecords::open(&database.url(), &options).unwrap());
    records.migrate().await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..200 {
        let records = records.clone();
        tasks.spawn(async move {
            records.enter_user(&format!("u{n}"), &claims(&format!("{}", n % 20)), at(n)).await
        });
    }
    assert!(tasks.join_all().await.into_iter().all(|entered| entered.is_ok()));
    let count = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    assert_eq!(database.run(count), "3");
}

#[tokio::test]
async fn no_password_is_shown() {
    let database = PostgresDatabase::fresh().await;
    let good = database.url();
    let wrong = good.replace("correct-horse", "wrong-horse");
    let records = SqlRecords::open(&wrong, &hasty()).unwrap();
    let error = records.ping().await.unwrap_err();
    let shown = format!("{records:?} {} {error} {error:?}", records.shown());
    assert!(!shown.contains("horse"), "{shown}");
    assert!(shown.contains("127.0.0.1"), "{shown}");
    assert!(matches!(error, RecordsError::Refused(_)), "coming back does not help: {error}");
    let plain = SqlRecords::open(&format!("{good}?sslmode=require"), &hasty()).unwrap();
    let error = plain.ping().await.unwrap_err();
    assert!(matches!(error, RecordsError::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn tls_is_as_the_url_says() {
    let of = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (good, other) = (of("127.0.0.1"), of("127.0.0.1"));
    let server = PostgresServer::start_with_tls(&good.cert.pem(), &good.signing_key.serialize_pem()).await;
    let dir = TempDir::new().unwrap();
    let file = |name: &str, pem: &str| {
        std::fs::write(dir.path().join(name), pem).unwrap();
        dir.path().join(name).display().to_string()
    };
    let (known, unknown) = (file("known.pem", &good.cert.pem()), file("unknown.pem", &other.cert.pem()));
    let encrypted = async |parameters: &str| {
        let records =
            SqlRecords::open(&format!("{}?{parameters}", server.url("postgres")), &hasty()).unwrap();
        records.ping().await?;
        let state = "select string_agg(distinct ssl::text, '') from pg_stat_ssl s join pg_stat_activity a using (pid) \
                     where a.application_name = 'drawbridge'";
        let state = server.run("postgres", state);
        records.close().await;
        eventually(PATIENCE, async || {
            let left = "select count(*) from pg_stat_activity where application_name = 'drawbridge'";
            server.run("postgres", left) == "0"
        })
        .await;
        Ok::<_, RecordsError>(state)
    };
    assert_eq!(encrypted("sslmode=disable").await.unwrap(), "false");
    assert_eq!(encrypted("sslmode=require").await.unwrap(), "true");
    assert_eq!(encrypted(&format!("sslmode=verify-full&sslrootcert={known}")).await.unwrap(), "true");
    for refused in ["sslmode=verify-full".to_owned(), format!("sslmode=verify-full&sslrootcert={unknown}")] {
        let error = encrypted(&refused).await.unwrap_err();
        assert!(matches!(error, RecordsError::Unavailable(_)), "{error}");
    }
}

#[tokio::test]
async fn a_connection_to_a_server_that_became_a_replica_is_given_up() {
    let database = PostgresDatabase::fresh().await;
    let options = SqlOptions { max_connections: 1, ..hasty() };
    let records = ready(&database.server, database.name(), &database.url(), &options).await;
    user(&records, "u1").await;
    // As a replica would, but only for connections from now on.
    let name = database.run("select current_database()");
    database.run(&format!("alter database {name} set default_transaction_read_only = on"));
    user(&records, "u1").await;
    database
        .run("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'drawbridge'");
    let error = records.enter_user("u2", &claims("two"), at(0)).await.unwrap_err();
    assert!(matches!(error, RecordsError::Unavailable(_)), "{error}");
    let reset = format!("alter database {name} reset default_transaction_read_only");
    let reset =
        database.psql().args(["-c", "set default_transaction_read_only = off", "-c", &reset]).status();
    assert!(reset.unwrap().success());
    records.enter_user("u2", &claims("two"), at(0)).await.unwrap();
}
