//! Patterns of names: `*` stands for any text, all else for itself. A pattern is for the whole name.

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Box<str>);

/// No pattern is longer, in bytes.
pub const MAX_GLOB_BYTES: usize = 256;

impl Glob {
    /// Reads a pattern; `None` if it is empty or too long.
    pub fn parse(text: &str) -> Option<Self> {
        (1..=MAX_GLOB_BYTES).contains(&text.len()).then(|| Self(text.into()))
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `name` is one of those that are meant.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            // The first place will do: whatever fits behind a later one fits behind it too.
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pattern_is_for_the_whole_name() {
        for (pattern, name, matches) in [
            ("read", "read", true),
            ("read", "reads", false),
            ("read", "a_read", false),
            ("files__*", "files__read", true),
            ("files__*", "files_read", false),
            ("*_delete", "a_delete", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a_b_b_c", true),
            ("a*b*c", "ac", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("**", "ü", true),
        ] {
            assert_eq!(Glob::parse(pattern).unwrap().matches(name), matches, "{pattern} and {name}");
        }
        assert_eq!(Glob::parse(""), None);
        assert_eq!(Glob::parse(&"x".repeat(MAX_GLOB_BYTES + 1)), None);
    }

    /// What it is by definition.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|at| by_definition(rest, &name[at..])),
            Some((c, rest)) => {
                name.split_first().is_some_and(|(d, name)| c == d && by_definition(rest, name))
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_what_it_is_by_definition(pattern in "[ab*]{1,8}", name in "[ab]{0,10}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = by_definition(&chars(&pattern), &chars(&name));
            prop_assert_eq!(Glob::parse(&pattern).unwrap().matches(&name), expected);
        }
    }
}
