//! The pages: plain HTML, one style sheet, no script. All that others have written is escaped.

use askama::Template;
use axum::body::Body;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::text::Text;

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("../templates/style.css");

/// A page on which somebody signs in with a token.
#[derive(Template)]
#[template(path = "sign_in.html")]
pub(crate) struct SignIn<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) transaction: &'a str,
    pub(crate) is_wrong: bool,
}

/// A page on which somebody lets a client in or not.
#[derive(Template)]
#[template(path = "consent.html")]
pub(crate) struct Consent<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) transaction: &'a str,
    pub(crate) client: &'a str,
    /// Who stands for the client, if that was checked.
    pub(crate) verified_by: Option<&'a str>,
    /// The operator has named it.
    pub(crate) is_named: bool,
    /// It is answered on its users' machines alone: who vouches for it can't know what listens there.
    pub(crate) is_any_program: bool,
    pub(crate) user: &'a str,
    pub(crate) resource: &'a str,
    /// Where the browser goes next: a port on the user's machine, or a host.
    pub(crate) port: Option<u16>,
    pub(crate) host: &'a str,
    pub(crate) is_listed: bool,
    pub(crate) scopes: Vec<Offer<'a>>,
    /// What the user needs at the backends that the client will reach.
    pub(crate) accounts: Vec<Needed<'a>>,
    /// Whether one of these can be connected from here.
    pub(crate) can_connect: bool,
}

/// An account on the consent page.
pub(crate) struct Needed<'a> {
    pub(crate) backend: &'a str,
    pub(crate) host: &'a str,
    pub(crate) state: &'a str,
    /// Where it is connected, if it is to be.
    pub(crate) link: Option<String>,
}

/// A scope on the consent page.
pub(crate) struct Offer<'a> {
    pub(crate) scope: &'a str,
    pub(crate) means: &'a str,
}

/// A page on which somebody decides to connect an account.
#[derive(Template)]
#[template(path = "connect.html")]
pub(crate) struct Connect<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) transaction: &'a str,
    pub(crate) backend: &'a str,
    pub(crate) host: &'a str,
    /// Where the browser goes next.
    pub(crate) server: &'a str,
    pub(crate) user: &'a str,
    /// For somebody else to log in.
    pub(crate) switch: &'a str,
}

/// A page on which somebody gives a key for a backend.
#[derive(Template)]
#[template(path = "key.html")]
pub(crate) struct Key<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) transaction: &'a str,
    pub(crate) backend: &'a str,
    pub(crate) host: &'a str,
    /// Where there are keys.
    pub(crate) help: Option<&'a str>,
    pub(crate) user: &'a str,
    /// For somebody else to log in.
    pub(crate) switch: &'a str,
    /// What was given is none.
    pub(crate) is_wrong: bool,
}

/// A page that says that an account is connected.
#[derive(Template)]
#[template(path = "connected.html")]
pub(crate) struct Connected<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) backend: &'a str,
}

/// The accounts of a user.
#[derive(Template)]
#[template(path = "connections.html")]
pub(crate) struct Accounts<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) user: &'a str,
    /// For somebody else to log in.
    pub(crate) switch: &'a str,
    pub(crate) accounts: Vec<Account<'a>>,
    /// What users make where they may.
    pub(crate) tokens: Option<OwnTokens<'a>>,
}

/// The tokens of a user, and what is needed to make another.
pub(crate) struct OwnTokens<'a> {
    pub(crate) tokens: Vec<OwnToken>,
    /// The endpoints that there are besides the default one.
    pub(crate) endpoints: Vec<String>,
    pub(crate) transaction: String,
    /// Whether the user may make one now.
    pub(crate) may_make: bool,
    /// Why none was made.
    pub(crate) wrong: Option<&'a str>,
}

/// A token, as it is shown.
pub(crate) struct OwnToken {
    pub(crate) id: String,
    pub(crate) name: String,
    /// Its last characters.
    pub(crate) hint: String,
    pub(crate) scopes: String,
    pub(crate) endpoint: String,
    pub(crate) used: String,
    pub(crate) ends: String,
}

/// A page that shows the secret of a new token, once.
#[derive(Template)]
#[template(path = "made_token.html")]
pub(crate) struct MadeToken<'a> {
    pub(crate) text: &'a Text,
    pub(crate) gateway: &'a str,
    pub(crate) name: &'a str,
    pub(crate) secret: &'a str,
}

/// What a user has at one backend.
pub(crate) struct Account<'a> {
    pub(crate) backend: &'a str,
    pub(crate) host: &'a str,
    pub(crate) state: &'a str,
    /// There is something to be forgotten.
    pub(crate) is_known: bool,
    pub(crate) transaction: String,
}

/// A page that says what went wrong.
#[derive(Template)]
#[template(path = "error.html")]
struct Problem<'a> {
    text: &'a Text,
    gateway: &'a str,
    what: &'a str,
    detail: Option<&'a str>,
    way: Way<'a>,
}

/// Where an error page leads.
#[derive(Clone, Copy, Default)]
pub(crate) enum Way<'a> {
    /// The user goes on in the application.
    #[default]
    Nowhere,
    /// To the user's accounts.
    Accounts,
    /// To what a client has asked for, at this path.
    Back(&'a str),
    /// To a login as somebody else, by this transaction.
    Switch(&'a str),
}

/// Why somebody sees an error page, in their words.
pub(crate) struct ErrorPage<'a> {
    pub(crate) status: StatusCode,
    pub(crate) what: &'a str,
    /// Something that others have written.
    pub(crate) detail: Option<&'a str>,
    pub(crate) way: Way<'a>,
}

impl ErrorPage<'_> {
    pub(crate) fn render(&self, text: &Text, gateway: &str) -> Response<Body> {
        page(self.status, &Problem { text, gateway, what: self.what, detail: self.detail, way: self.way })
    }
}

/// A page as an answer.
pub(crate) fn page(status: StatusCode, template: &impl Template) -> Response<Body> {
    let Ok(html) = template.render() else {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    };
    let mut response = Response::new(Body::from(html));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    guard(headers);
    response
}

/// What keeps a page from being framed, kept, or told about. There is no `form-action` on purpose: browsers apply it to
/// where the client sends the user after that, which may be any application.
pub(crate) fn guard(headers: &mut HeaderMap) {
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Sends the browser elsewhere, by GET whatever it came with.
pub(crate) fn redirect(to: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    guard(headers);
    if let Ok(to) = HeaderValue::from_str(to) {
        headers.insert(header::LOCATION, to);
    }
    response
}
