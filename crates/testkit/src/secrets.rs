//! Finds in a text what must never be told: the secrets that the tests use and all that a gateway makes.

/// Configured by tests: the key that handles are sealed with, the first administrator's token, the database's password.
const PLANTED: [&str; 3] =
    ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "correct-horse"];
/// A sealed handle is longer than this behind the id of its key.
const HANDLE: usize = 60;
/// Before the one token that a gateway shows on purpose, to whoever starts it for the first time.
const SHOWN_ONCE: &str = "is shown this once:";

fn run(text: &str) -> usize {
    text.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')).count()
}

/// Some characters of the first secret in `text`; `None` if there is none.
pub fn found(text: &str) -> Option<String> {
    let shown = |at: usize| text[at..].chars().take(80).collect::<String>();
    if let Some(at) = PLANTED.iter().find_map(|planted| text.find(planted)) {
        return Some(shown(at));
    }
    for (at, _) in text.match_indices("drb_") {
        let (_, body) = text[at + 4..].split_once('_').unwrap_or_default();
        let once = text[..at].trim_end().ends_with(SHOWN_ONCE);
        if body.bytes().take_while(u8::is_ascii_alphanumeric).count() >= 8 && !once {
            return Some(shown(at));
        }
    }
    // A JSON Web Token, an exported key, and a handle: "key id", a dot, and much base64.
    let jwt = text.match_indices("eyJ").find(|(at, _)| run(&text[*at..]) > 20).map(|(at, _)| at);
    let key = text.find("PRIVATE KEY-----");
    let handle = text.match_indices('.').find(|(at, _)| run(&text[at + 1..]) > HANDLE).map(|(at, _)| at);
    jwt.or(key).or(handle).map(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_found_and_nothing_else() {
        let handle = format!("k1.{}", "Ab-_".repeat(20));
        for secret in [
            "token=drb_pat_0123456789abc",
            "Bearer eyJhbGciOiJFUzI1NiIsInR5cCI6ImF0K2p3dCJ9.e30.c2ln",
            "-----BEGIN PRIVATE KEY-----",
            "postgres://postgres:correct-horse@127.0.0.1/x",
            &handle,
        ] {
            assert!(found(secret).is_some(), "{secret}");
        }
        for fine in [
            "drb_pat_ is how they begin, as drb_pat_…ab12 is shown",
            "this one is shown this once:\n\n    drb_adm_0123456789abcdef\n",
            "2026-01-02T03:04:05.123456Z  INFO drawbridge_app: 127.0.0.1:80 00-0af7651916cd43dd8448eb211c80319c-b7ad-01",
        ] {
            assert_eq!(found(fine), None);
        }
    }
}
