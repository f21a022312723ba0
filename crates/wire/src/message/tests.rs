use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Message, Invalid> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn tells_the_kinds_apart() {
    let kind = |t| parse(t).unwrap().kind();
    assert_eq!(kind(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#), Kind::Request);
    assert_eq!(kind(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#), Kind::Notification);
    assert_eq!(kind(r#"{"result":{},"jsonrpc":"2.0","id":"a"}"#), Kind::Result);
    assert_eq!(kind(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#), Kind::Error);
}

#[test]
fn refuses_ids_that_mcp_forbids() {
    for id in ["null", "1.5", "1e3", "true", "[1]", "{}"] {
        let e = parse(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).unwrap_err();
        assert_eq!(e.code, code::INVALID_REQUEST, "{id}");
    }
    assert!(parse(&format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(2000))).is_err());
}

#[test]
fn a_key_given_twice_is_refused_even_when_spelt_with_escapes() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"a","\u006dethod":"b"}"#,
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"a"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","n\u0061me":"b"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{},"_meta":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#,
    ] {
        let e = parse(text).unwrap_err();
        assert_eq!(e.code, code::INVALID_REQUEST);
        assert!(e.reason.contains("twice"), "{e}");
    }
}

#[test]
fn an_error_names_the_request_it_belongs_to() {
    let e = parse(r#"{"jsonrpc":"2.0","id":7,"method":"x","params":[1]}"#).unwrap_err();
    assert_eq!(e.id.unwrap().literal(), "7");
    let e = parse(r#"{"jsonrpc":"2.0","id":7,"method":"x""#).unwrap_err();
    assert_eq!((e.code, e.id), (code::PARSE_ERROR, None));
}

#[test]
fn finds_what_the_gateway_reads() {
    let m = parse(
        r#" {"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"x":{"name":"no"},"name":"yes","_meta":{"progressToken":5}}}"#,
    )
    .unwrap();
    assert_eq!(m.text(Field::Name).unwrap(), "yes");
    assert_eq!(m.raw(Field::MetaProgressToken).unwrap(), b"5");
    assert_eq!(m.method(), "tools/call");
    assert!(m.raw(Field::Uri).is_none());
}

#[test]
fn batches_keep_their_good_elements() {
    let text = r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}, 5, {"jsonrpc":"2.0","method":"x"}]"#;
    let Incoming::Batch(items) = Incoming::parse(Bytes::from(text), 10).unwrap() else { panic!("a batch") };
    assert_eq!(items.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert!(Incoming::parse(Bytes::from("[]"), 10).is_err());
    assert!(Incoming::parse(Bytes::from("[1,2,3]"), 2).is_err());
}

#[test]
fn texts_that_are_not_utf8_or_not_objects_are_refused() {
    assert_eq!(Message::parse(Bytes::from_static(b"\xff{}")).unwrap_err().code, code::PARSE_ERROR);
    assert_eq!(parse("7").unwrap_err().code, code::INVALID_REQUEST);
    assert_eq!(parse("").unwrap_err().code, code::PARSE_ERROR);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_a_typed_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
        drop(Incoming::parse(Bytes::from(text), 16));
    }

    #[test]
    fn a_message_keeps_its_text(params in "[ -~é]{0,40}", n in any::<u64>()) {
        let value = json::encode_string(&params);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{n},"method":"m","params":{{"z":{value},"a":1e400}}}}"#);
        let m = parse(&text).unwrap();
        prop_assert_eq!(m.bytes(), text.as_bytes());
        let id = m.id().unwrap();
        let number = n.to_string();
        prop_assert_eq!(&id.literal()[..], number.as_bytes());
    }
}

#[test]
fn a_detached_message_keeps_nothing_of_the_buffer_that_it_came_in() {
    let text = br#"{"jsonrpc":"2.0","id":"a","method":"ping","params":{"_meta":{"progressToken":7}}}"#;
    let mut buffer = vec![b' '; 8192];
    buffer[..text.len()].copy_from_slice(text);
    let buffer = Bytes::from(buffer);
    let message = Message::parse(buffer.slice(..text.len())).unwrap().detached();
    assert!(buffer.is_unique());
    assert_eq!(message.bytes(), &text[..]);
    assert_eq!(message.raw(Field::MetaProgressToken), Some(&b"7"[..]));
    assert_eq!(message.id(), Some(Id::from_text("a")));
}

#[test]
fn a_large_message_is_not_copied_to_be_detached() {
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"x":"{}"}}}}"#, "x".repeat(LARGE));
    let message = Message::parse(Bytes::from(text)).unwrap();
    assert_eq!(message.clone().detached().bytes().as_ptr(), message.bytes().as_ptr());
}
