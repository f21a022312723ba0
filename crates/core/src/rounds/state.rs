//! The `requestState` that clients carry: sealed, for one principal, one call with its arguments, and for a while.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, RpcError, code, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::call::Call;
use crate::fault::Fault;
use crate::seal::{KeyRing, Purpose};
use crate::state::InstanceId;

/// What the client's retry continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continues {
    /// A call that waits at an instance.
    Parked(InstanceId, u128),
    /// A call whose state is the backend's own, raw JSON.
    Inner(Bytes),
}

#[derive(Serialize, Deserialize)]
struct Sealed {
    #[serde(rename = "e")]
    endpoint: String,
    #[serde(rename = "p")]
    principal: String,
    /// The digest of the call.
    #[serde(rename = "d")]
    call: String,
    /// Seconds since 1970.
    #[serde(rename = "t")]
    expires: u64,
    /// The instance where it waits, and its place there.
    #[serde(rename = "k", skip_serializing_if = "Option::is_none")]
    parked: Option<(String, String)>,
    #[serde(rename = "s", skip_serializing_if = "Option::is_none")]
    inner: Option<Box<RawValue>>,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A state for `call` at `endpoint`, as a raw JSON string.
pub(super) fn seal(
    keys: &KeyRing,
    endpoint: &str,
    call: &Call,
    continues: &Continues,
    valid: Duration,
) -> Bytes {
    let (parked, inner) = match continues {
        Continues::Parked(instance, id) => (Some((instance.to_string(), format!("{id:x}"))), None),
        Continues::Inner(raw) => {
            let text = String::from_utf8_lossy(raw).into_owned();
            (None, RawValue::from_string(text).ok())
        }
    };
    let sealed = Sealed {
        endpoint: endpoint.to_owned(),
        principal: call.client.principal.as_str().to_owned(),
        call: digest(&call.request),
        expires: now() + valid.as_secs().max(1),
        parked,
        inner,
    };
    let plain = serde_json::to_vec(&sealed).unwrap_or_default();
    Bytes::from(json::encode_string(&keys.seal(Purpose::RequestState, &plain)))
}

/// What the state of a retry continues. Says no more about a bad one than the client needs to go on.
pub(super) fn open(keys: &KeyRing, endpoint: &str, call: &Call) -> Result<Continues, Fault> {
    let invalid = || Fault::invalid_params("the requestState is not one that was given for this request");
    let handle = call.request.text(Field::RequestState).ok_or_else(invalid)?;
    let plain = keys.open(Purpose::RequestState, &handle).ok_or_else(invalid)?;
    let sealed: Sealed = serde_json::from_slice(&plain).ok().ok_or_else(invalid)?;
    let ours = sealed.endpoint == endpoint
        && sealed.principal == call.client.principal.as_str()
        && sealed.call == digest(&call.request);
    if !ours {
        return Err(invalid());
    }
    if now() >= sealed.expires {
        return Err(expired());
    }
    match (sealed.parked, sealed.inner) {
        (Some((instance, id)), _) => {
            let instance = InstanceId::parse(&instance).ok_or_else(invalid)?;
            u128::from_str_radix(&id, 16).map(|id| Continues::Parked(instance, id)).map_err(|_| invalid())
        }
        (None, Some(raw)) => Ok(Continues::Inner(Bytes::from(raw.get().to_owned()))),
        (None, None) => Err(invalid()),
    }
}

/// The error for a state whose call waits no more. What it had done when it asked is not known here.
pub(super) fn expired() -> Fault {
    let what = "the requestState has expired, was used already, or its call was lost: the call may have been executed, \
                so look before you send it anew, without the requestState";
    let data = r#"{"code":"outcome_unknown","retry":"unsafe"}"#;
    Fault::Rpc(RpcError::new(code::INVALID_PARAMS, what).with_data(data))
}

/// What makes two requests the same call: the method and all parameters but those of the retry.
fn digest(request: &Message) -> String {
    let mut hash = Sha256::new();
    hash.update(request.method().as_bytes());
    let params = request.raw(Field::Params).unwrap_or(b"{}");
    match serde_json::from_slice::<Value>(params) {
        Ok(Value::Object(members)) => {
            let of_the_call = |key: &str| !["inputResponses", "requestState", "_meta"].contains(&key);
            let mut members: Vec<_> = members.iter().filter(|(key, _)| of_the_call(key)).collect();
            members.sort_by_key(|(key, _)| *key);
            for (key, value) in members {
                hash.update(json::encode_string(key));
                update(&mut hash, value);
            }
        }
        // Numbers that no reader of JSON agrees about, so not the same call as any other.
        _ => hash.update(params),
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Feeds a value in the one spelling that equal values share.
fn update(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(members) => {
            hash.update(b"{");
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| *key);
            for (key, value) in members {
                hash.update(json::encode_string(key));
                update(hash, value);
            }
            hash.update(b"}");
        }
        Value::Array(elements) => {
            hash.update(b"[");
            elements.iter().for_each(|element| update(hash, element));
            hash.update(b"]");
        }
        scalar => {
            hash.update(scalar.to_string());
            hash.update(b",");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCE: &str = "00000000deadbeef";

    fn parked() -> Continues {
        Continues::Parked(InstanceId::parse(INSTANCE).unwrap(), 7)
    }

    use crate::client::{Answers, Client, Principal};
    use crate::seal::SealKey;
    use drawbridge_wire::{Id, ProtocolVersion};
    use proptest::prelude::*;
    use std::sync::Arc;

    fn keys() -> KeyRing {
        KeyRing::new(&[SealKey { id: "k".into(), secret: [1; 32] }]).unwrap()
    }

    fn call(principal: &str, method: &str, params: &str) -> Call {
        let client = Client {
            principal: Principal::named(principal),
            version: ProtocolVersion::LATEST,
            capabilities: "{}".into(),
            info: None,
            answers: Answers::ByRetry,
        };
        let request = Message::request(&Id::from_number(1), method, params.as_bytes());
        Call::new(request, Arc::new(client))
    }

    const VALID: Duration = Duration::from_secs(60);

    fn with_state(params: &str, state: &Bytes) -> String {
        let state = String::from_utf8_lossy(state);
        format!(r#"{},"inputResponses":{{}},"requestState":{state}}}"#, params.strip_suffix('}').unwrap())
    }

    #[test]
    fn a_state_is_good_for_the_same_call_of_the_same_principal_only() {
        let keys = keys();
        let params = r#"{"name":"x","arguments":{"a":1,"b":[1.5,"é"]},"_meta":{"progressToken":1}}"#;
        let first = call("ann", "tools/call", params);
        let inner = Continues::Inner(Bytes::from_static(br#""s\u00e9 \/""#));
        let state = seal(&keys, "e", &first, &inner, VALID);
        let good = with_state(r#"{"arguments":{"b":[1.5,"\u00e9"],"a":1},"name":"x"}"#, &state);
        assert_eq!(open(&keys, "e", &call("ann", "tools/call", &good)).unwrap(), inner);
        let other = with_state(r#"{"arguments":{"b":[1.5,"é"],"a":2},"name":"x"}"#, &state);
        let nested = with_state(r#"{"arguments":{"a":1,"b":[1.5,["é"]]},"name":"x"}"#, &state);
        for (endpoint, principal, method, params) in [
            ("f", "ann", "tools/call", &good),
            ("e", "bob", "tools/call", &good),
            ("e", "ann", "prompts/get", &good),
            ("e", "ann", "tools/call", &other),
            ("e", "ann", "tools/call", &nested),
        ] {
            assert!(
                open(&keys, endpoint, &call(principal, method, params)).is_err(),
                "{endpoint} {principal}"
            );
        }
    }

    #[test]
    fn where_a_list_ends_is_part_of_the_call() {
        let of = |arguments: &str| {
            digest(&call("ann", "tools/call", &format!(r#"{{"name":"x","arguments":{arguments}}}"#)).request)
        };
        assert_ne!(of(r#"{"a":[[1],2]}"#), of(r#"{"a":[[1,2]]}"#));
        assert_ne!(of(r#"{"a":[1,[2],3]}"#), of(r#"{"a":[1,[2,3]]}"#));
    }

    #[test]
    fn an_expired_state_is_told_apart() {
        let keys = keys();
        let first = call("ann", "tools/call", r#"{"name":"x"}"#);
        let plain = Sealed {
            endpoint: String::new(),
            principal: "ann".into(),
            call: digest(&first.request),
            expires: now(),
            parked: Some((INSTANCE.into(), "7".into())),
            inner: None,
        };
        let handle = keys.seal(Purpose::RequestState, &serde_json::to_vec(&plain).unwrap());
        let params = with_state(r#"{"name":"x"}"#, &Bytes::from(json::encode_string(&handle)));
        assert_eq!(open(&keys, "", &call("ann", "tools/call", &params)), Err(expired()));
    }

    proptest! {
        #[test]
        fn no_changed_state_opens(at in any::<prop::sample::Index>(), byte in "[A-Za-z0-9_.-]") {
            let keys = keys();
            let first = call("ann", "tools/call", r#"{"name":"x"}"#);
            let state = seal(&keys, "", &first, &parked(), VALID);
            let mut text: Vec<char> = String::from_utf8(state.to_vec()).unwrap().chars().collect();
            let at = 1 + at.index(text.len() - 2);
            let changed = byte.chars().next().unwrap();
            let same = text[at] == changed;
            text[at] = changed;
            let state = Bytes::from(text.into_iter().collect::<String>());
            let opened = open(&keys, "", &call("ann", "tools/call", &with_state(r#"{"name":"x"}"#, &state)));
            // The last digit of a handle may have bits that nobody reads.
            prop_assert!(same || opened.is_err() || opened == Ok(parked()));
        }

        #[test]
        fn any_text_as_a_state_is_refused(text in any::<String>()) {
            let state = Bytes::from(json::encode_string(&text));
            let params = with_state(r#"{"name":"x"}"#, &state);
            prop_assert!(open(&keys(), "", &call("ann", "tools/call", &params)).is_err());
        }
    }
}
