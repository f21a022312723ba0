//! Users, passwords, certificates.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_redis::{Error, RedisOptions};
use drawbridge_testkit::redis::{Cluster, RedisServer};
use tempfile::TempDir;

use super::{all_work, none_works};
use crate::fleet::{Instance, at_last};

/// The page that says what a user needs.
const PAGE: &str = include_str!("../../../../../docs/redis.md");

/// The rules of a user as the page has them, for one server or for a cluster.
pub(crate) fn rules() -> Vec<String> {
    let lines = PAGE.lines().skip_while(|line| !line.starts_with("ACL SETUSER"));
    let rules = lines.take_while(|line| !line.starts_with("```"));
    let words: Vec<String> =
        rules.flat_map(str::split_whitespace).filter(|w| *w != "\\").map(str::to_owned).collect();
    assert_eq!(words[..4], ["ACL", "SETUSER", "drawbridge", "on"], "{words:?}");
    words.into_iter().filter(|word| !word.starts_with('>')).skip(3).collect()
}

/// Gives a user the rules of the page.
pub(crate) async fn set_user(server: &RedisServer, user: &str, password: &str) {
    let password = format!(">{password}");
    let rules = rules();
    let mut command = vec!["ACL", "SETUSER", user, "reset", &password];
    command.extend(rules.iter().map(String::as_str));
    server.run::<()>(&command).await;
}

#[tokio::test]
async fn a_user_with_the_rules_of_the_page_can_do_all_that_is_needed() {
    let server = RedisServer::start().await;
    set_user(&server, "gate", "p@ss/word").await;
    let url = format!("redis://gate:p%40ss%2Fword@127.0.0.1:{}", server.port());
    let instance = Instance::connected(&RedisOptions::parse(&url).unwrap()).await;
    all_work(&instance.shared).await;
    let log: Vec<redis_entry::Entry> = server.run(&["ACL", "LOG"]).await;
    assert!(log.is_empty(), "refused: {log:?}");
    assert!(server.connections().await.iter().all(|name| name.starts_with("drawbridge-")));
}

mod redis_entry {
    /// An entry of `ACL LOG`, as pairs.
    pub(super) type Entry = std::collections::HashMap<String, String>;
}

#[tokio::test]
async fn a_password_that_was_changed_is_found_without_a_restart() {
    let server = RedisServer::start().await;
    set_user(&server, "gate", "first").await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let asked = Arc::new(Mutex::new(0));
    let provider = {
        let (file, asked) = (file.clone(), asked.clone());
        Arc::new(move || {
            *asked.lock().unwrap() += 1;
            std::fs::read_to_string(&file).map_err(|error| error.to_string())
        })
    };
    let options = RedisOptions::parse(&server.url()).unwrap().username("gate").password(provider);
    let instance = Instance::connected(&options.timeout(Duration::from_millis(500))).await;
    assert_eq!(*asked.lock().unwrap(), 3, "once for each connection");

    // Connections that stand stay, whatever the password is now.
    server.run::<()>(&["ACL", "SETUSER", "gate", ">second", "<first"]).await;
    all_work(&instance.shared).await;
    server.run::<()>(&["CLIENT", "KILL", "USER", "gate"]).await;
    at_last("the old password to be refused", async || {
        (!instance.state.is_up()).then_some(())?;
        instance.state.last_error().filter(|error| error.contains("WRONGPASS"))
    })
    .await;
    none_works(&instance.shared, Duration::from_millis(500)).await;
    std::fs::write(&file, "second").unwrap();
    instance.up().await;
    all_work(&instance.shared).await;

    std::fs::remove_file(&file).unwrap();
    server.run::<()>(&["CLIENT", "KILL", "USER", "gate"]).await;
    let error = at_last("the missing file to be named", async || {
        instance.state.last_error().filter(|error| error.contains("the password can't be had"))
    })
    .await;
    assert!(!error.contains("second"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_said_and_never_repeated() {
    let server = RedisServer::setup().option("requirepass", "right").login("default", "right").start().await;
    for url in [
        format!("redis://:hunter2@127.0.0.1:{}", server.port()),
        format!("redis://127.0.0.1:{}", server.port()),
    ] {
        let instance =
            Instance::start(&RedisOptions::parse(&url).unwrap().timeout(Duration::from_millis(500)));
        let error = at_last("a refusal", async || {
            instance.state.last_error().filter(|error| error.contains("refused the login"))
        })
        .await;
        assert!(!error.contains("hunter2"), "{error}");
        assert!(!instance.state.is_up());
    }
    let instance = Instance::connected(
        &RedisOptions::parse(&format!("redis://:right@127.0.0.1:{}", server.port())).unwrap(),
    )
    .await;
    all_work(&instance.shared).await;
}

#[tokio::test]
async fn what_a_user_may_not_do_is_said() {
    let server = RedisServer::start().await;
    set_user(&server, "gate", "pw").await;
    server.run::<()>(&["ACL", "SETUSER", "gate", "resetchannels"]).await;
    let url = format!("redis://gate:pw@127.0.0.1:{}", server.port());
    let instance = Instance::connected(&RedisOptions::parse(&url).unwrap()).await;
    for answer in [
        instance.shared.bus.subscribe("topic").await.map(drop),
        instance.shared.bus.publish("topic", bytes::Bytes::new()).await,
    ] {
        let error = answer.unwrap_err().to_string();
        assert!(error.contains("NOPERM"), "{error}");
    }
}

/// A certificate authority, and a certificate of it for the address 127.0.0.1.
fn certificates(dir: &TempDir) -> (PathBuf, PathBuf, PathBuf) {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    // One that has the name of its own authority would be taken for signed by itself.
    authority.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    (
        write("ca.pem", authority_certificate.pem()),
        write("server.pem", certificate.pem()),
        write("key.pem", key.serialize_pem()),
    )
}

#[tokio::test]
async fn tls_is_spoken_to_all_nodes_of_a_cluster() {
    let dir = TempDir::new().unwrap();
    let (authority, certificate, key) = certificates(&dir);
    // Nodes tell of their ports for TLS only if they speak it among themselves.
    let setup = RedisServer::setup().tls(&certificate, &key).option("tls-cluster", "yes");
    let setup = setup.option("tls-ca-cert-file", authority.to_str().unwrap());
    let cluster = Cluster::start_with(3, false, &setup).await;
    let options = RedisOptions::parse(&cluster.tls_url()).unwrap().ca_bundles(vec![authority]);
    let instance = Instance::connected(&options).await;
    for _ in 0..10 {
        all_work(&instance.shared).await;
    }
}

#[tokio::test]
async fn tls_is_spoken_with_an_authority_of_ones_own() {
    let dir = TempDir::new().unwrap();
    let (authority, certificate, key) = certificates(&dir);
    let server = RedisServer::setup().tls(&certificate, &key).start().await;
    let options = RedisOptions::parse(&format!("rediss://127.0.0.1:{}", server.tls_port())).unwrap();
    let trusting = Instance::connected(&options.clone().ca_bundles(vec![authority.clone()])).await;
    all_work(&trusting.shared).await;
    let distrusting = Instance::start(&options.clone().timeout(Duration::from_millis(500)));
    let error = at_last("the certificate to be refused", async || {
        distrusting.state.last_error().filter(|error| error.contains("certificate"))
    })
    .await;
    assert!(error.contains("127.0.0.1"), "{error}");
    none_works(&distrusting.shared, Duration::from_millis(500)).await;

    let missing = options.clone().ca_bundles(vec![dir.path().join("no.pem")]);
    let none = options.ca_bundles(vec![key]);
    for options in [missing, none] {
        let tasks = drawbridge_core::Tasks::default();
        let instance = drawbridge_core::state::InstanceId::fresh();
        let made = drawbridge_redis::RedisState::connect(options, instance, tasks);
        assert!(matches!(made.map(drop), Err(Error::Certificates { .. })));
    }
}
