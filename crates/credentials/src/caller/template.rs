//! Values of headers with places in them that the caller fills.

use std::borrow::Cow;
use std::fmt::Write as _;

use drawbridge_core::{Subject, SubjectKind};

use super::Person;

/// What a place begins with.
const OPEN: &str = "{principal.";
/// What the names of services begin with, so that none is a user's.
const SERVICE: &str = "service:";

/// What can stand at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Sub,
    Email,
    Name,
    Groups,
    Client,
}

const FIELDS: [(&str, Field); 5] = [
    ("sub", Field::Sub),
    ("email", Field::Email),
    ("name", Field::Name),
    ("groups", Field::Groups),
    ("client", Field::Client),
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Field),
}

/// A value with places in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTemplate {
    /// Nothing in it is the caller's.
    #[error("nothing in it is of the caller")]
    Fixed,
    /// A place has a name that is not known.
    #[error("there is no `principal.{0}`")]
    Unknown(String),
    /// A place does not end.
    #[error("a `{{principal.` without its `}}`")]
    Open,
    /// The text beside the places can't be in a header.
    #[error("the value can't be sent in a header")]
    Unsendable,
}

impl Template {
    /// The names of what can stand at a place.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|(name, _)| *name)
    }

    /// Reads a text: `{principal.sub}` and the like are places, all else stands for itself.
    ///
    /// # Errors
    ///
    /// If it has no place, or one that is not known.
    pub fn parse(text: &str) -> Result<Self, BadTemplate> {
        let is_sendable = |byte: u8| (b' '..=b'~').contains(&byte);
        if !text.bytes().all(is_sendable) {
            return Err(BadTemplate::Unsendable);
        }
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once(OPEN) {
            let (name, behind) = after.split_once('}').ok_or(BadTemplate::Open)?;
            let known = FIELDS.iter().find(|(known, _)| *known == name);
            let (_, field) = known.ok_or_else(|| BadTemplate::Unknown(name.to_owned()))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(Part::Place(*field));
            rest = behind;
        }
        if parts.is_empty() {
            return Err(BadTemplate::Fixed);
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self(parts))
    }

    fn has(&self, fields: &[Field]) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Place(field) if fields.contains(field)))
    }

    /// Whether it wants what only the gateway's records have.
    pub fn needs_person(&self) -> bool {
        self.has(&[Field::Email, Field::Name, Field::Groups])
    }

    /// Whether it says who the caller is by a name that an issuer has given.
    pub fn says_who(&self) -> bool {
        self.has(&[Field::Sub])
    }

    /// The value for a caller; nothing if a place stays empty.
    pub(super) fn fill(&self, subject: &Subject, person: Option<&Person>) -> Option<String> {
        let mut value = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => value.push_str(text),
                Part::Place(field) => put(&mut value, *field, subject, person)?,
            }
        }
        Some(value)
    }
}

/// Who a caller is, by a name that nobody else has.
pub(super) fn sub(subject: &Subject) -> Option<Cow<'_, str>> {
    Some(match subject.kind {
        SubjectKind::User => Cow::Borrowed(&*subject.id),
        SubjectKind::Service => Cow::Owned(format!("{SERVICE}{}", subject.id)),
        // Whoever else is called so is not to be taken for a service.
        SubjectKind::External if subject.id.starts_with(SERVICE) => return None,
        SubjectKind::External => Cow::Borrowed(&*subject.id),
    })
    .filter(|sub| !sub.is_empty())
}

fn put(value: &mut String, field: Field, subject: &Subject, person: Option<&Person>) -> Option<()> {
    match field {
        Field::Sub => encode(value, &sub(subject)?),
        Field::Client => encode(value, &subject.client),
        Field::Email => encode(value, person?.email.as_deref()?),
        Field::Name => encode(value, person?.name.as_deref()?),
        Field::Groups => {
            let groups = &person?.groups;
            let mut some = None;
            for group in groups {
                if some.is_some() {
                    value.push(',');
                }
                some = encode(value, group).or(some);
            }
            some
        }
    }
}

/// Adds a text so that it is nothing but text in any header: what is no letter, digit or one of a few signs is encoded as
/// in URLs. Nothing is added of an empty one.
fn encode(value: &mut String, text: &str) -> Option<()> {
    let last = text.len().checked_sub(1)?;
    for (at, byte) in text.bytes().enumerate() {
        let is_inner_space = byte == b' ' && at != 0 && at != last;
        if byte.is_ascii_alphanumeric() || b"-._~@+:/".contains(&byte) || is_inner_space {
            value.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            let _ = write!(value, "%{byte:02X}");
        }
    }
    Some(())
}
