//! URLs that a backend wants a user to open. Whoever has taken over a backend could lead users anywhere with them, so
//! they lead to the backend's own host, and to those that the operator names for it (`elicitation_hosts`).

use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Kind, Message, RpcError, code, json, method};
use url::{Host, Url};

use super::Trusted;
use crate::call::{Ask, Event, Reply, Resume, Round, Shape};
use crate::client::is_by_url;
use crate::rounds::embedded;

const INPUT_REQUESTS: &str = "inputRequests";

impl Trusted {
    /// What comes of a request, or of the call of a tool, without what would lead users astray.
    pub(super) fn open(&self, event: Event, is_tool: bool) -> Option<Event> {
        match event {
            Event::Asks(round) if is_to_be_looked_at(&round) => self.asked(*round, is_tool),
            Event::Done(reply) if reply.message.error_code() == code::URL_ELICITATION_REQUIRED => {
                Some(self.required(reply, is_tool))
            }
            // What a task asks is in what is said of the task.
            Event::Done(reply) if reply.message.raw(Field::InputRequests).is_some() => {
                let asks = reply.message.raw(Field::InputRequests).unwrap_or(b"{}");
                match self.checked(asks) {
                    Ok(asks) => {
                        let message =
                            Edit::new(&reply.message).set(Field::InputRequests, asks).into_message();
                        Some(Event::Done(Reply { message, shape: reply.shape }))
                    }
                    Err(astray) => Some(told(is_tool, &astray)),
                }
            }
            Event::Notify(message) if message.method() == method::TASKS_CHANGED => {
                let params = message.raw(Field::Params).unwrap_or(b"{}");
                let Some(asks) = json::member(params, INPUT_REQUESTS) else {
                    return Some(Event::Notify(message));
                };
                // Who looks at the task is told why.
                let params = match self.checked(asks) {
                    Ok(asks) => json::replace_member(params, INPUT_REQUESTS, &asks),
                    Err(_) => json::filter_members(params, |key| key != INPUT_REQUESTS),
                };
                Some(Event::Notify(Edit::new(&message).set(Field::Params, params).into_message()))
            }
            event => Some(event),
        }
    }

    fn asked(&self, mut round: Round, is_tool: bool) -> Option<Event> {
        let asks = std::mem::take(&mut round.asks);
        for mut ask in asks {
            let params = ask.request.raw(Field::Params).unwrap_or(b"{}");
            let is_elicitation = ask.request.method() == method::ELICITATION_CREATE;
            if !is_elicitation || !(is_by_url(params) || json::is_ambiguous(params)) {
                round.asks.push(ask);
                continue;
            }
            match self.leads_to(params) {
                Ok(()) => {
                    let params = self.labelled(params);
                    ask.request = Edit::new(&ask.request).set(Field::Params, params).into_message();
                    round.asks.push(ask);
                }
                Err(astray) if round.resume == Resume::Live => refuse(ask, &astray),
                Err(astray) => return Some(told(is_tool, &astray)),
            }
        }
        round.source = round.source.and_then(|source| self.relabelled(source, &round.asks, is_tool));
        (!round.asks.is_empty()).then(|| Event::Asks(Box::new(round)))
    }

    /// What is asked, by key, each page where it may be.
    fn checked(&self, asks: &[u8]) -> Result<bytes::Bytes, String> {
        let mut checked = Vec::new();
        for (key, ask) in json::members(asks).unwrap_or_default() {
            if json::is_ambiguous(ask) {
                return Err(format!("What the server \"{}\" asks can be read in two ways.", self.name));
            }
            let method = json::member(ask, "method").and_then(json::decode_string);
            let params = json::member(ask, "params");
            let params = params.filter(|params| is_by_url(params) || json::is_ambiguous(params));
            let ask = match params.filter(|_| method.as_deref() == Some(method::ELICITATION_CREATE)) {
                Some(params) => {
                    self.leads_to(params)?;
                    json::replace_member(ask, "params", &self.labelled(params))
                }
                None => bytes::Bytes::copy_from_slice(ask),
            };
            checked.push((key, ask));
        }
        Ok(json::object(checked.iter().map(|(key, ask)| (key.as_ref(), &ask[..]))))
    }

    /// The message in which `asks` came, with them as they are now.
    fn relabelled(&self, source: Message, asks: &[Ask], is_tool: bool) -> Option<Message> {
        if source.kind() == Kind::Error {
            return match self.required(Reply { message: source, shape: Shape::Plain }, is_tool) {
                Event::Done(reply) => Some(reply.message),
                _ => None,
            };
        }
        let asks: Vec<_> = asks
            .iter()
            .filter_map(|ask| Some((ask.request.id()?.text()?.into_owned(), embedded(&ask.request))))
            .collect();
        let asks = json::object(asks.iter().map(|(key, ask)| (key.as_str(), &ask[..])));
        Some(Edit::new(&source).set(Field::InputRequests, asks).into_message())
    }

    /// An error that wants URLs to be opened before the call is made again.
    fn required(&self, reply: Reply, is_tool: bool) -> Event {
        let Some(data) = reply.message.raw(Field::ErrorData) else { return Event::Done(reply) };
        let wanted = json::member(data, "elicitations").and_then(|raw| json::elements(raw).ok());
        let mut labelled = Vec::new();
        for params in wanted.unwrap_or_default() {
            if let Err(astray) = self.leads_to(params) {
                return told(is_tool, &astray);
            }
            labelled.push(self.labelled(params));
        }
        let elicitations = json::array(labelled.iter().map(|params| &params[..]));
        let data = json::replace_member(data, "elicitations", &elicitations);
        let message = Edit::new(&reply.message).set(Field::ErrorData, data).into_message();
        Event::Done(Reply { message, shape: reply.shape })
    }

    /// Whether a URL leads to where this backend may lead users; else what to say.
    fn leads_to(&self, params: &[u8]) -> Result<(), String> {
        let name = &self.name;
        if json::is_ambiguous(params) {
            tracing::warn!(backend.name = %name, "an elicitation of it has a member twice");
            return Err(format!("What the server \"{name}\" asks can be read in two ways."));
        }
        let text = json::member(params, "url").and_then(json::decode_string).unwrap_or_default();
        // What parsers read in different ways leads nowhere for sure.
        let is_plain = !text.contains(|c: char| c <= ' ' || c == '\\' || c == '\u{7f}');
        let url = Url::parse(&text).ok().filter(|url| {
            let has_user = !url.username().is_empty() || url.password().is_some();
            is_plain && !has_user && matches!(url.scheme(), "https" | "http")
        });
        let Some(host) = url.as_ref().and_then(Url::host) else {
            tracing::warn!(backend.name = %name, "wants a user to open what is no URL of a page");
            return Err(format!("The server \"{name}\" wants the user to open what is no URL of a page."));
        };
        // An address in brackets has them in no pattern.
        let host = match host {
            Host::Ipv6(address) => address.to_string(),
            host => host.to_string(),
        };
        if self.trust.hosts.iter().any(|pattern| pattern.matches(&host)) {
            return Ok(());
        }
        tracing::warn!(
            backend.name = %name,
            url.host = host,
            "wants a user to open a page there: if that is right, put the host into its elicitation_hosts"
        );
        Err(format!(
            "The server \"{name}\" wants the user to open a page at {host}, where this gateway does not let it lead users. \
             If that is right, the gateway's operator can allow it (elicitation_hosts)."
        ))
    }

    /// The parameters of an elicitation that say who asks.
    fn labelled(&self, params: &[u8]) -> bytes::Bytes {
        let message = json::member(params, "message").and_then(json::decode_string).unwrap_or_default();
        let label = format!("[{}] ", self.name);
        if message.starts_with(&label) {
            return bytes::Bytes::copy_from_slice(params);
        }
        let message = json::encode_string(&format!("{label}{message}"));
        json::replace_member(params, "message", message.as_bytes())
    }
}

/// Whether something is elicited that wants a URL to be opened, or could be read so.
fn is_to_be_looked_at(round: &Round) -> bool {
    let is_by_url = |ask: &Ask| {
        let params = ask.request.raw(Field::Params).unwrap_or(b"{}");
        ask.request.method() == method::ELICITATION_CREATE
            && (is_by_url(params) || json::is_ambiguous(params))
    };
    // What came in a message may be passed on in it.
    let is_ambiguous = |source: &Message| {
        let asks = source.raw(Field::InputRequests).unwrap_or(b"{}");
        json::is_ambiguous(asks)
            || json::members(asks).unwrap_or_default().iter().any(|(_, ask)| json::is_ambiguous(ask))
    };
    round.asks.iter().any(is_by_url) || round.source.as_ref().is_some_and(is_ambiguous)
}

/// Tells a backend that waits that nobody is asked.
fn refuse(ask: Ask, astray: &str) {
    if let (Some(reply), Some(id)) = (ask.reply, ask.request.id()) {
        let error = RpcError::new(code::INVALID_PARAMS, astray);
        // It may have gone on without.
        reply.send(error.to_message(Some(&id)));
    }
}

/// The answer to a call that can't go on.
fn told(is_tool: bool, text: &str) -> Event {
    let id = drawbridge_wire::Id::from_number(0);
    if !is_tool {
        return Event::Fail(crate::Fault::Rpc(RpcError::new(code::INTERNAL_ERROR, text)));
    }
    let content = format!(r#"[{{"type":"text","text":{}}}]"#, json::encode_string(text));
    let result = json::object([("content", content.as_bytes()), ("isError", &b"true"[..])]);
    Event::Done(Reply { message: Message::result(&id, &result), shape: Shape::Plain })
}

#[cfg(test)]
mod tests;
