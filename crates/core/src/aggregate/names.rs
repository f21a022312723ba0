//! Names of tools and prompts on merged endpoints: `{backend}__{name}`, within `[A-Za-z0-9_-]{1,64}`.

use std::collections::HashMap;
use std::fmt::Write as _;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Between the backend's name, which can't have it, and the tool's.
pub const SEPARATOR: &str = "__";
/// The longest name that every host takes.
pub const MAX_NAME: usize = 64;
const HASH_CHARS: usize = 10;

/// The name under which a client knows `name` of `backend`: deterministic, legal, and different for different
/// names of a backend (those that must be changed end in a hash of the original).
pub fn expose(backend: &str, name: &str) -> String {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let plain = format!("{backend}{SEPARATOR}{name}");
    if plain.len() <= MAX_NAME && !name.is_empty() && name.chars().all(legal) && !is_shortened(name) {
        return plain;
    }
    let mut short: String = name.chars().map(|c| if legal(c) { c } else { '_' }).collect();
    short.truncate(MAX_NAME - backend.len() - SEPARATOR.len() - HASH_CHARS - 2);
    let mut exposed = format!("{backend}{SEPARATOR}{short}_h");
    for byte in &Sha256::digest(name)[..HASH_CHARS / 2] {
        // Writing to a String can't fail.
        let _ = write!(exposed, "{byte:02x}");
    }
    exposed
}

/// The backend's name and the rest of an exposed name.
pub fn split(exposed: &str) -> Option<(&str, &str)> {
    exposed.split_once(SEPARATOR)
}

/// Whether a name (without the backend's) ends as shortened ones do, so that it has to be looked up.
pub fn is_shortened(name: &str) -> bool {
    name.len() > HASH_CHARS + 1
        && name.is_char_boundary(name.len() - HASH_CHARS)
        && name[..name.len() - HASH_CHARS].ends_with("_h")
        && name[name.len() - HASH_CHARS..].bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Remembers the originals of shortened names; bounded, and learnt anew when it was emptied.
#[derive(Debug, Default)]
pub struct Aliases(Mutex<HashMap<String, String>>);

const MAX_ALIASES: usize = 20_000;

impl Aliases {
    /// Notes the original of an exposed name, if it is not plain to see.
    pub fn note(&self, exposed: &str, original: &str) {
        if split(exposed).is_some_and(|(_, rest)| rest == original) {
            return;
        }
        let mut map = self.0.lock();
        if map.len() >= MAX_ALIASES {
            map.clear();
        }
        map.insert(exposed.to_owned(), original.to_owned());
    }

    /// The original of an exposed name that had to be changed.
    pub fn find(&self, exposed: &str) -> Option<String> {
        self.0.lock().get(exposed).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_legal_names_only_get_the_prefix() {
        assert_eq!(expose("files", "read_file"), "files__read_file");
        assert_eq!(split("files__read__file"), Some(("files", "read__file")));
    }

    #[test]
    fn a_name_that_looks_shortened_can_not_take_the_place_of_one_that_is() {
        let long = "x".repeat(80);
        let shortened = expose("b", &long);
        let (_, imitation) = split(&shortened).unwrap();
        assert_ne!(expose("b", imitation), shortened);
    }

    proptest! {
        #[test]
        fn every_name_becomes_legal_and_stays_unique(a in ".{0,90}", b in ".{0,90}", backend in "[a-z0-9-]{1,32}") {
            let (x, y) = (expose(&backend, &a), expose(&backend, &b));
            for name in [&x, &y] {
                prop_assert!(name.len() <= MAX_NAME, "{name}");
                prop_assert!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-'));
                prop_assert_eq!(split(name).unwrap().0, backend.as_str());
            }
            prop_assert_eq!(a == b, x == y);
        }
    }
}
