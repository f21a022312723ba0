//! Changing a message: named members are replaced, removed or added, all other bytes stay.

use std::ops::Range;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

use crate::json;
use crate::message::{Field, Id, Message, Slot};
use crate::payload::Payload;

#[derive(Debug)]
enum Op {
    Replace(Bytes),
    /// The whole member, with the comma that belongs to it.
    Remove,
    /// A member without a comma, to stand first in its object.
    Insert(Bytes),
}

/// A list of changes to one message; [`Edit::finish`] writes the result.
#[derive(Debug)]
pub struct Edit<'m> {
    message: &'m Message,
    ops: SmallVec<[(Range<usize>, Op); 4]>,
}

impl<'m> Edit<'m> {
    /// Starts with no change.
    pub fn new(message: &'m Message) -> Self {
        Self { message, ops: SmallVec::new() }
    }

    /// Gives the message another id.
    #[must_use]
    pub fn id(self, id: &Id) -> Self {
        self.set(Field::Id, id.literal().clone())
    }

    /// Gives `field` the raw JSON `value`, adding the member if it is missing. The object that holds it must
    /// be there, except that `params` is made for [`Field::Meta`] and `_meta` objects for their members.
    #[must_use]
    pub fn set(mut self, field: Field, value: impl Into<Bytes>) -> Self {
        let value = value.into();
        if let Some(range) = self.message.range(field) {
            self.ops.push((range, Op::Replace(value)));
            return self;
        }
        let member = member_text(field.key(), &value);
        if let Some(open) = self.message.slot_start(field.slot()) {
            self.ops.push((open + 1..open + 1, Op::Insert(member)));
            return self;
        }
        let object = [b"{", &member[..], b"}"].concat();
        match field.slot() {
            Slot::Params => self.set(Field::Params, object),
            Slot::Meta => self.set(Field::Meta, object),
            Slot::ResultMeta => self.set(Field::ResultMeta, object),
            Slot::Root | Slot::Result | Slot::Error => self,
        }
    }

    /// Gives `field` a text.
    #[must_use]
    pub fn set_text(self, field: Field, text: &str) -> Self {
        self.set(field, json::encode_string(text))
    }

    /// Gives `field` the raw JSON `value` unless it has one.
    #[must_use]
    pub fn set_missing(self, field: Field, value: impl Into<Bytes>) -> Self {
        if self.message.raw(field).is_some() { self } else { self.set(field, value) }
    }

    /// Takes `field` out, if it is there.
    #[must_use]
    pub fn remove(mut self, field: Field) -> Self {
        if let Some(range) = self.message.member_range(field) {
            self.ops.push((range, Op::Remove));
        }
        self
    }

    /// Rewrites the members of `params._meta`: drops those whose key `drop` names and adds `add` (raw JSON).
    /// A `_meta` that becomes empty is kept as an empty object, since removing it is a separate wish.
    #[must_use]
    pub fn meta(self, drop: impl Fn(&str) -> bool, add: &[(&str, &[u8])]) -> Self {
        let old = self.message.raw(Field::Meta).and_then(|raw| json::members(raw).ok()).unwrap_or_default();
        let kept = old.iter().filter(|(key, _)| !drop(key)).map(|(key, value)| (key.as_ref(), *value));
        let meta = json::object(kept.chain(add.iter().copied()));
        self.set(Field::Meta, meta)
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Writes the changed message.
    pub fn finish(mut self) -> Payload {
        let text = self.message.bytes();
        if self.ops.is_empty() {
            return Payload::from(text.clone());
        }
        self.ops.sort_by_key(|(range, _)| (range.start, range.end));
        let removed = removed_spans(text, &self.ops);
        let mut out = Writer { text, copied: 0, pieces: smallvec![] };
        let mut removed_at = 0;
        let mut ops = self.ops.into_iter().peekable();
        while let Some((range, op)) = ops.next() {
            match op {
                Op::Replace(value) => {
                    out.keep_until(range.start);
                    out.pieces.push(value);
                    out.copied = range.end;
                }
                Op::Remove => {
                    if let Some(span) = removed.get(removed_at)
                        && span.start <= range.start
                    {
                        out.keep_until(span.start);
                        out.copied = out.copied.max(span.end);
                        removed_at += 1;
                    }
                }
                Op::Insert(member) => {
                    out.keep_until(range.start);
                    let another = ops
                        .peek()
                        .is_some_and(|(r, op)| r.start == range.start && matches!(op, Op::Insert(_)));
                    out.pieces.push(member);
                    if another || has_member_after(text, range.start, &removed) {
                        out.pieces.push(Bytes::from_static(b","));
                    }
                }
            }
        }
        out.keep_until(text.len());
        Payload::from_pieces(out.pieces)
    }

    /// Writes the changed message as a message, for a further change.
    pub fn into_message(self) -> Message {
        Message::own(self.finish().into_bytes().to_vec())
    }
}

fn member_text(key: &str, value: &[u8]) -> Bytes {
    let object = json::object([(key, value)]);
    object.slice(1..object.len() - 1)
}

struct Writer<'t> {
    text: &'t Bytes,
    copied: usize,
    pieces: SmallVec<[Bytes; 4]>,
}

impl Writer<'_> {
    fn keep_until(&mut self, end: usize) {
        if self.copied < end {
            self.pieces.push(self.text.slice(self.copied..end));
            self.copied = end;
        }
    }
}

/// The spans to leave out for the removed members: neighbours are joined, and each span takes the comma that
/// would be left over, the one behind it or, at the end of an object, the one before it.
fn removed_spans(text: &[u8], ops: &[(Range<usize>, Op)]) -> SmallVec<[Range<usize>; 4]> {
    let space = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r');
    let after = |at: usize| at + text[at..].iter().take_while(|b| space(b)).count();
    let mut spans: SmallVec<[Range<usize>; 4]> = smallvec![];
    for (range, _) in ops.iter().filter(|(_, op)| matches!(op, Op::Remove)) {
        match spans.last_mut() {
            Some(last) if text[after(last.end)] == b',' && after(after(last.end) + 1) == range.start => {
                last.end = range.end;
            }
            _ => spans.push(range.clone()),
        }
    }
    for span in &mut spans {
        let next = after(span.end);
        let before = span.start - text[..span.start].iter().rev().take_while(|b| space(b)).count();
        if text[next] == b',' {
            span.end = next + 1;
        } else if text[..before].ends_with(b",") {
            span.start = before - 1;
        }
    }
    spans
}

/// Whether a member that stays follows the brace just before `at`.
fn has_member_after(text: &[u8], mut at: usize, removed: &[Range<usize>]) -> bool {
    loop {
        while text.get(at).is_some_and(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')) {
            at += 1;
        }
        match removed.iter().find(|span| span.contains(&at)) {
            Some(span) => at = span.end,
            None => return text.get(at) != Some(&b'}'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn written(edit: Edit<'_>) -> String {
        String::from_utf8(edit.finish().into_bytes().to_vec()).unwrap()
    }

    #[test]
    fn only_the_named_members_change() {
        let m = message(r#"{ "result" : {"n":1.50,"b":"\u00e9"}, "jsonrpc":"2.0","id":  17 ,"x":null}"#);
        assert_eq!(
            written(Edit::new(&m).id(&Id::from_text("c"))),
            r#"{ "result" : {"n":1.50,"b":"\u00e9"}, "jsonrpc":"2.0","id":  "c" ,"x":null}"#
        );
    }

    #[test]
    fn objects_are_made_where_they_are_missing() {
        let m = message(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
        assert_eq!(
            written(Edit::new(&m).set_text(Field::MetaLogLevel, "info")),
            r#"{"params":{"_meta":{"io.modelcontextprotocol/logLevel":"info"}},"jsonrpc":"2.0","id":1,"method":"tools/list"}"#
        );
        let m = message(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{}}"#);
        assert_eq!(
            written(Edit::new(&m).set(Field::MetaProgressToken, "3")),
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":3}}}"#
        );
    }

    #[test]
    fn removing_leaves_no_comma_behind() {
        for (text, left) in [
            (r#"{"resultType":"complete","a":1,"ttlMs":0,"cacheScope":"private"}"#, r#"{"a":1}"#),
            (r#"{"resultType":"complete"}"#, "{}"),
            (r#"{ "resultType":"complete" , "ttlMs":1 }"#, "{  }"),
            (r#"{"a":1, "ttlMs":1 , "cacheScope":"x" ,"b":2}"#, r#"{"a":1, "b":2}"#),
        ] {
            let m = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{text}}}"#));
            let out = written(
                Edit::new(&m).remove(Field::ResultType).remove(Field::TtlMs).remove(Field::CacheScope),
            );
            assert_eq!(out, format!(r#"{{"jsonrpc":"2.0","id":1,"result":{left}}}"#));
        }
    }

    #[test]
    fn a_member_added_where_all_others_go_stands_alone() {
        let m = message(r#"{"jsonrpc":"2.0","id":1,"result":{"ttlMs":1}}"#);
        assert_eq!(
            written(Edit::new(&m).remove(Field::TtlMs).set(Field::CacheScope, "\"private\"")),
            r#"{"jsonrpc":"2.0","id":1,"result":{"cacheScope":"private"}}"#
        );
    }

    #[test]
    fn meta_is_rewritten_member_by_member() {
        let m = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"keep":[1, 2],"progressToken":1}}}"#,
        );
        assert_eq!(
            written(Edit::new(&m).meta(|k| k == "progressToken", &[("new", b"true")])),
            r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"keep":[1, 2],"new":true}}}"#
        );
    }

    proptest! {
        #[test]
        fn an_edited_message_is_json_and_differs_only_where_told(
            keys in prop::sample::subsequence(vec!["resultType", "a", "ttlMs", "b", "cacheScope", "c"], 0..=6),
            remove in prop::sample::subsequence(vec![Field::ResultType, Field::TtlMs, Field::CacheScope], 0..=3),
            insert in any::<bool>(),
            gap in "[ \n]{0,2}",
        ) {
            let body = keys.iter().map(|k| format!("{gap}\"{k}\"{gap}:{gap}1{gap}")).collect::<Vec<_>>().join(",");
            let m = message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{{body}}}}}"#));
            let mut edit = Edit::new(&m).id(&Id::from_number(2));
            for &field in &remove {
                edit = edit.remove(field);
            }
            if insert {
                edit = edit.set_missing(Field::NextCursor, "\"n\"");
            }
            let out: serde_json::Value = serde_json::from_str(&written(edit)).unwrap();
            let left: Vec<_> = out["result"].as_object().unwrap().keys().cloned().collect();
            let mut want: Vec<_> = keys.iter().filter(|k| !remove.iter().any(|f| f.key() == **k)).map(|k| (*k).to_owned()).collect();
            if insert {
                want.insert(0, "nextCursor".to_owned());
            }
            prop_assert_eq!(left, want);
        }
    }
}
