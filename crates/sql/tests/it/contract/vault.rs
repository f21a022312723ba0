//! What users have at other servers.

use drawbridge_auth::vault::{Authority, Connection, ConnectionStatus, Turn, Vault};
use serde_json::json;

use crate::fixture::{Fixture, at, set, user};

fn authority(issuer: &str) -> Authority {
    Authority {
        backend: "gh".to_owned(),
        issuer: issuer.to_owned(),
        resource: "https://gh.example/mcp".to_owned(),
        metadata: json!({ "token_endpoint": format!("{issuer}/token"), "more": ["ü"] }),
        found: None,
        client_id: None,
        client_secret: None,
        pinned_at: at(0),
    }
}

fn connection(user: &str, access: &str) -> Connection {
    Connection {
        id: format!("c-{user}"),
        user: user.to_owned(),
        backend: "gh".to_owned(),
        issuer: "https://as.example".to_owned(),
        resource: "https://gh.example/mcp".to_owned(),
        client: "client".to_owned(),
        scopes: set(&["read"]),
        wanted: set(&[]),
        access: access.to_owned(),
        refresh: Some("k1.refresh".to_owned()),
        id_token: None,
        expires_at: Some(at(60)),
        status: ConnectionStatus::Connected,
        version: 1,
        last_error: None,
        created_at: at(0),
        updated_at: at(0),
    }
}

fn vault(f: &Fixture) -> &dyn Vault {
    &*f.a
}

pub(super) async fn a_server_is_pinned_once_and_replaced_by_who_knows_it(f: &Fixture) {
    let v = vault(f);
    assert_eq!(v.authority("gh").await.unwrap(), None);
    let (one, two) = (authority("https://one.example"), authority("https://two.example"));
    assert_eq!(v.pin_authority(&one).await.unwrap(), one);
    assert_eq!(f.b.pin_authority(&two).await.unwrap(), one, "the first stays");
    v.note_authority("gh", Some("https://two.example")).await.unwrap();
    let noted = f.b.authority("gh").await.unwrap().unwrap();
    assert_eq!(noted, Authority { found: Some("https://two.example".to_owned()), ..one.clone() });
    assert_eq!(v.replace_authority("https://other.example", &two).await.unwrap(), Some(noted));
    assert_eq!(v.replace_authority("https://one.example", &two).await.unwrap(), Some(two.clone()));
    assert_eq!(f.b.authority("gh").await.unwrap(), Some(two));
}

pub(super) async fn many_who_register_get_one_client(f: &Fixture) {
    let v = vault(f);
    v.pin_authority(&authority("https://as.example")).await.unwrap();
    assert_eq!(
        v.register_at("gh", "https://other.example", "c", None).await.unwrap().unwrap().client_id,
        None,
        "it was registered at another server"
    );
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..10 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        tasks.spawn(async move {
            let (client, secret) = (format!("c{n}"), format!("k1.s{n}"));
            let now = records.register_at("gh", "https://as.example", &client, Some(&secret)).await;
            let now = now.unwrap().unwrap();
            (now.client_id.unwrap(), now.client_secret.unwrap())
        });
    }
    let all: std::collections::BTreeSet<_> = tasks.join_all().await.into_iter().collect();
    assert_eq!(all.len(), 1, "{all:?}");
    let (client, _) = all.first().unwrap();
    v.forget_client("gh", "https://as.example", "another").await.unwrap();
    assert_eq!(v.authority("gh").await.unwrap().unwrap().client_id.as_ref(), Some(client));
    v.forget_client("gh", "https://as.example", client).await.unwrap();
    let forgotten = v.authority("gh").await.unwrap().unwrap();
    assert_eq!((forgotten.client_id, forgotten.client_secret), (None, None));
}

pub(super) async fn a_connection_comes_back_as_it_was_kept_and_counts_on(f: &Fixture) {
    let v = vault(f);
    for id in ["ann", "bob"] {
        user(f.records(), id).await;
    }
    assert_eq!(v.connection("ann", "gh").await.unwrap(), None);
    let (ann, bob) = (connection("ann", "k1.a"), connection("bob", "k1.b"));
    assert_eq!(v.put_connection(&ann).await.unwrap(), ann);
    v.put_connection(&bob).await.unwrap();
    v.put_connection(&Connection { id: "c2".to_owned(), backend: "a".to_owned(), ..ann.clone() })
        .await
        .unwrap();
    assert_eq!(f.b.connection("ann", "gh").await.unwrap(), Some(ann.clone()));
    let backends = |all: Vec<Connection>| all.into_iter().map(|c| c.backend).collect::<Vec<_>>();
    assert_eq!(backends(f.b.connections("ann").await.unwrap()), ["a", "gh"]);
    // Another agreement takes its place, under the same id.
    let again = Connection {
        id: "new".to_owned(),
        access: "k1.again".to_owned(),
        refresh: None,
        expires_at: None,
        created_at: at(9),
        ..ann.clone()
    };
    let kept = v.put_connection(&again).await.unwrap();
    assert_eq!(kept, Connection { id: ann.id.clone(), version: 2, created_at: at(0), ..again });
    assert_eq!(f.b.remove_connection("ann", "gh").await.unwrap(), Some(kept));
    assert_eq!(v.remove_connection("ann", "gh").await.unwrap(), None);
    assert_eq!(v.connection("bob", "gh").await.unwrap(), Some(bob));
    for odd in ["a\0", "\0"] {
        assert_eq!(v.connection(odd, "gh").await.unwrap(), None);
        assert_eq!(v.connections(odd).await.unwrap(), []);
        assert_eq!(v.remove_connection("ann", odd).await.unwrap(), None);
    }
}

pub(super) async fn a_connection_is_changed_by_who_knows_its_version(f: &Fixture) {
    let v = vault(f);
    user(f.records(), "ann").await;
    let first = v.put_connection(&connection("ann", "k1.a")).await.unwrap();
    let changed = Connection {
        access: "k1.b".to_owned(),
        status: ConnectionStatus::NeedsScope,
        wanted: set(&["write"]),
        last_error: Some("more".to_owned()),
        expires_at: None,
        updated_at: at(5),
        ..first
    };
    assert!(f.b.change_connection(&changed).await.unwrap());
    assert!(!v.change_connection(&changed).await.unwrap(), "its version is another now");
    assert_eq!(v.connection("ann", "gh").await.unwrap(), Some(Connection { version: 2, ..changed }));
}

pub(super) async fn a_turn_is_one_instances_for_a_while(f: &Fixture) {
    let v = vault(f);
    user(f.records(), "ann").await;
    let it = v.put_connection(&connection("ann", "k1.a")).await.unwrap();
    let turn = |by, now| Turn { by, now: at(now), until: at(now + 20) };
    assert!(v.take_turn(&it.id, 1, turn("one", 0)).await.unwrap());
    assert!(!f.b.take_turn(&it.id, 1, turn("two", 19)).await.unwrap());
    v.give_back(&it.id, "two").await.unwrap();
    assert!(!f.b.take_turn(&it.id, 1, turn("two", 19)).await.unwrap(), "it was not theirs to give back");
    v.give_back(&it.id, "one").await.unwrap();
    assert!(f.b.take_turn(&it.id, 1, turn("two", 19)).await.unwrap());
    assert!(v.take_turn(&it.id, 1, turn("one", 39)).await.unwrap(), "the other's time is over");
    assert!(v.change_connection(&it).await.unwrap());
    assert!(!f.b.take_turn(&it.id, 1, turn("two", 99)).await.unwrap(), "it is another version");
    assert!(f.b.take_turn(&it.id, 2, turn("two", 40)).await.unwrap(), "the change gave the turn back");

    let mut tasks = tokio::task::JoinSet::new();
    let it = v.put_connection(&it).await.unwrap();
    for n in 0..10 {
        let records = if n % 2 == 0 { f.a.clone() } else { f.b.clone() };
        let id = it.id.clone();
        tasks.spawn(async move {
            let by = n.to_string();
            let turn = Turn { by: &by, now: at(50), until: at(70) };
            usize::from(records.take_turn(&id, 3, turn).await.unwrap())
        });
    }
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), 1);
}

pub(super) async fn what_other_keys_have_sealed_is_found(f: &Fixture) {
    let v = vault(f);
    for (id, access) in [("ann", "k1.a"), ("bob", "k2.b"), ("cid", "k.c"), ("dot", "k11.d")] {
        user(f.records(), id).await;
        v.put_connection(&connection(id, access)).await.unwrap();
    }
    let users = async |key, limit| -> Vec<String> {
        v.sealed_before(key, limit).await.unwrap().into_iter().map(|c| c.user).collect()
    };
    assert_eq!(users("k1", 9).await, ["bob", "cid", "dot"]);
    assert_eq!(users("k", 2).await, ["ann", "bob"]);
    assert_eq!(users("zz", 9).await.len(), 4);
}
