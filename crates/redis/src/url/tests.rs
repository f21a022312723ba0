use proptest::prelude::{Strategy, any, prop, proptest};
use proptest::{option, prop_assert, prop_assert_eq};

use super::*;

fn parse(text: &str) -> Result<ServerUrl, UrlError> {
    text.parse()
}

fn at(host: &str, port: u16) -> Address {
    Address { host: host.to_owned(), port }
}

#[test]
fn every_form_is_read() {
    let url = parse("redis://localhost").unwrap();
    assert_eq!(url.servers, Servers::Single(at("localhost", 6379)));
    assert_eq!((url.tls, url.username, url.password, url.database), (false, None, None, 0));
    let url = parse("rediss://gate:p%40ss%2F@[::1]:7000/3").unwrap();
    assert_eq!(url.servers, Servers::Single(at("::1", 7000)));
    assert_eq!((url.tls, url.database), (true, 3));
    assert_eq!((url.username.as_deref(), url.password.as_deref()), (Some("gate"), Some("p@ss/")));
    let url = parse("redis://:only@a/").unwrap();
    assert_eq!((url.username, url.password.as_deref()), (None, Some("only")));
    let url = parse("redis+sentinel://u:p@a,b:1,[fe80::1]/my%20master/2").unwrap();
    let sentinels = vec![at("a", 26379), at("b", 1), at("fe80::1", 26379)];
    assert_eq!(url.servers, Servers::Sentinel { sentinels, name: "my master".to_owned() });
    assert_eq!(url.database, 2);
    let url = parse("REDISS+CLUSTER://a:1,b:2/").unwrap();
    assert_eq!(url.servers, Servers::Cluster(vec![at("a", 1), at("b", 2)]));
    assert!(url.tls);
}

#[test]
fn what_is_wrong_is_said() {
    for (text, expected) in [
        ("", UrlError::Scheme),
        ("localhost:6379", UrlError::Scheme),
        ("http://localhost", UrlError::Scheme),
        ("redis+sentinels://a/m", UrlError::Scheme),
        ("redis://", UrlError::NoHost),
        ("redis://:secret@", UrlError::NoHost),
        ("redis:///1", UrlError::NoHost),
        ("redis://a b", UrlError::Host(1)),
        ("redis+cluster://a,,b", UrlError::Host(2)),
        ("redis://[::1", UrlError::Host(1)),
        ("redis://::1", UrlError::Host(1)),
        ("redis://[1.2.3.4]", UrlError::Host(1)),
        ("redis://a:0", UrlError::Port(1)),
        ("redis://a:+1", UrlError::Port(1)),
        ("redis://a:65536", UrlError::Port(1)),
        ("redis://a:", UrlError::Port(1)),
        ("redis://[::1]1", UrlError::Port(1)),
        ("redis+cluster://a:1,b:x", UrlError::Port(2)),
        ("redis://a,b", UrlError::ManyHosts),
        ("redis://a:%zz@b", UrlError::Encoding),
        ("redis://a:%ff@b", UrlError::Encoding),
        ("redis://a:pass/word@b", UrlError::LateAt),
        ("redis://a:pass#word@b", UrlError::LateAt),
        ("redis://a/x", UrlError::Database),
        ("redis://a/-1", UrlError::Database),
        ("redis+cluster://a/1", UrlError::ClusterDatabase),
        ("redis+sentinel://a", UrlError::NoName),
        ("redis+sentinel://a/", UrlError::NoName),
        ("redis+sentinel://a/m/x", UrlError::Database),
        ("redis+sentinel://a/m/1/2", UrlError::Rest),
        ("redis://a/1/2", UrlError::Rest),
        ("redis://a?db=1", UrlError::Rest),
    ] {
        assert_eq!(parse(text).unwrap_err(), expected, "{text}");
    }
    let many = vec!["a"; 65].join(",");
    assert_eq!(parse(&format!("redis+cluster://{many}")).unwrap_err(), UrlError::TooManyHosts);
}

/// What stands in a URL for itself.
fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

fn host() -> impl Strategy<Value = String> {
    let v6 = any::<std::net::Ipv6Addr>().prop_map(|address| address.to_string());
    proptest::prop_oneof!["[a-z][a-z0-9.-]{0,20}", v6]
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        user in option::of(".{1,12}"),
        password in option::of(".{1,12}"),
        hosts in prop::collection::vec((host(), option::of(1_u16..)), 1..5),
        name in ".{1,12}",
        database in any::<u16>(),
        tls: bool,
    ) {
        let mut authority = String::new();
        if user.is_some() || password.is_some() {
            authority += &encoded(user.as_deref().unwrap_or_default());
            if let Some(password) = &password {
                authority += &format!(":{}", encoded(password));
            }
            authority.push('@');
        }
        let written: Vec<String> = hosts.iter().map(|(host, port)| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            port.map_or(host.clone(), |port| format!("{host}:{port}"))
        }).collect();
        let s = if tls { "s" } else { "" };
        let sentinel = format!("redis{s}+sentinel://{authority}{}/{}/{database}", written.join(","), encoded(&name));
        let url = parse(&sentinel).unwrap();
        let addresses = |default| hosts.iter().map(|(host, port)| at(host, port.unwrap_or(default))).collect::<Vec<_>>();
        prop_assert_eq!(&url.servers, &Servers::Sentinel { sentinels: addresses(26379), name });
        prop_assert_eq!((url.tls, &url.username, &url.password, url.database), (tls, &user, &password, i64::from(database)));
        let url = parse(&format!("redis{s}+cluster://{authority}{}", written.join(","))).unwrap();
        prop_assert_eq!(&url.servers, &Servers::Cluster(addresses(6379)));
        let url = parse(&format!("redis{s}://{authority}{}/{database}", written[0])).unwrap();
        prop_assert_eq!(&url.servers, &Servers::Single(addresses(6379).remove(0)));
        prop_assert_eq!((&url.username, &url.password), (&user, &password));
    }

    #[test]
    fn nothing_makes_it_panic_and_no_error_or_debug_output_has_the_password(
        junk in ".{0,40}",
        password in "[A-Z]{12}",
        before in "[a-z:/?#%,\\[\\]]{0,6}",
        behind in "[a-z0-9:/?#%,\\[\\]@]{0,10}",
        scheme in prop::sample::select(vec!["redis", "rediss+sentinel", "redis+cluster", "nope"]),
    ) {
        drop(parse(&junk));
        drop(parse(&format!("redis://{junk}")));
        let text = format!("{scheme}://{before}{password}@{behind}");
        match parse(&text) {
            // Before a colon it is a user.
            Ok(url) => {
                let shown = format!("{url:?}");
                prop_assert!(url.password.is_none() || !shown.contains(&password) || url.username.is_some());
            }
            Err(error) => {
                let shown = format!("{error} {error:?}");
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
        }
    }
}
