//! Where each key of a file stands, so that a check made long after parsing can point at it.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::options::AliasLimits;
use serde_saphyr::{Location, Spanned};

/// How much a file may grow by its aliases: enough for any real one, too little to fill the memory.
pub(super) fn alias_limits() -> AliasLimits {
    serde_saphyr::alias_limits! { max_total_replayed_events: 20_000 }
}

/// A place in a file: line and column, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: u64,
    pub(super) column: u64,
}

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        Self { line: location.line(), column: location.column() }
    }
}

/// The places of all keys and list items of one file, by dotted path (`seal.keys[0].id`).
#[derive(Default)]
pub(super) struct Positions {
    places: BTreeMap<String, Place>,
}

struct Place {
    key: Position,
    value: Position,
}

impl Positions {
    /// Reads the places of a YAML or JSON text; empty where the text does not parse.
    pub(super) fn read(text: &str) -> Self {
        let options = serde_saphyr::options! { with_snippet: false, alias_limits: alias_limits() };
        let mut positions = Self::default();
        if let Ok(root) = serde_saphyr::from_str_with_options::<Node>(text, options) {
            positions.walk("", &root);
        }
        positions
    }

    /// The place of a key, or of the nearest key above it that is written in the file, or the file's start.
    pub(super) fn of(&self, path: &str) -> Position {
        let mut path = path;
        loop {
            match (self.places.get(path), path.rfind(['.', '['])) {
                (Some(place), _) => return place.key,
                (None, Some(end)) => path = &path[..end],
                (None, None) => return Position { line: 1, column: 1 },
            }
        }
    }

    /// The paths of all keys.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Whether one of these paths is in the file.
    pub(super) fn has_any(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.places.contains_key(*path))
    }

    /// The place in this file of what stands at `position` in `other`, another writing of it.
    pub(super) fn translate(&self, other: &Self, position: Position, path: &str) -> Position {
        let is_value = other.places.get(path).is_some_and(|place| place.value == position);
        match self.places.get(path) {
            Some(place) if is_value => place.value,
            _ => self.of(path),
        }
    }

    /// The names below a path.
    pub(super) fn names(&self, path: &str) -> impl Iterator<Item = &str> {
        let below = self.places.keys().filter_map(move |key| key.strip_prefix(path)?.strip_prefix('.'));
        below.filter(|name| !name.contains(['.', '[']))
    }

    /// The path of the key or value that starts at a place, the innermost where there are several.
    pub(super) fn path_at(&self, position: Position) -> Option<&str> {
        let paths = self.paths(|place| place.key == position || place.value == position);
        paths.max_by_key(|path| path.len())
    }

    /// The path of the mapping that starts at a place, which is also the place of its first key.
    pub(super) fn mapping_at(&self, position: Position) -> Option<&str> {
        self.paths(|place| place.value == position).min_by_key(|path| path.len())
    }

    fn paths(&self, matches: impl Fn(&Place) -> bool) -> impl Iterator<Item = &str> {
        self.places.iter().filter(move |(_, place)| matches(place)).map(|(path, _)| path.as_str())
    }

    fn walk(&mut self, path: &str, node: &Node) {
        match node {
            Node::Leaf => {}
            Node::Map(entries) => {
                for (key, value) in entries {
                    let path = join(path, &key.value);
                    self.insert(&path, key.referenced.into(), value);
                }
            }
            Node::Seq(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.insert(&format!("{path}[{index}]"), item.referenced.into(), item);
                }
            }
        }
    }

    fn insert(&mut self, path: &str, key: Position, value: &Spanned<Node>) {
        self.places.insert(path.to_owned(), Place { key, value: value.referenced.into() });
        self.walk(path, &value.value);
    }
}

/// Whether `path` is `other` or below it.
pub(super) fn is_within(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Appends a key to a dotted path.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The shape of a document without its values.
enum Node {
    Leaf,
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    Seq(Vec<Spanned<Node>>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_str<E>(self, _: &str) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Leaf)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Seq(items))
    }
}
