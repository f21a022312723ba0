//! The URL of Redis.
//!
//! | form | meaning |
//! |---|---|
//! | `redis://host[:6379][/db]` | one server |
//! | `redis+sentinel://host[:26379],.../name[/db]` | the master that these sentinels know as `name` |
//! | `redis+cluster://host[:6379],...` | a cluster that has these nodes, among others |
//!
//! `rediss` in place of `redis` is the same over TLS. `user:password@` may stand before the hosts; what is not a letter
//! or digit there is written as `%XX`. No error repeats any of it.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// The port of a server where the URL names none.
const PORT: u16 = 6379;
/// The port of a sentinel where the URL names none.
const SENTINEL_PORT: u16 = 26379;
/// More hosts than this are not meant.
const MAX_HOSTS: usize = 64;

/// What is wrong with a URL. Says where, never what stands there, since it may be part of a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It does not begin with one of the schemes.
    #[error(
        "the URL begins with none of `redis://`, `rediss://`, `redis+sentinel://`, `rediss+sentinel://`, `redis+cluster://` and `rediss+cluster://`"
    )]
    Scheme,
    /// There is no host.
    #[error("the URL names no host")]
    NoHost,
    /// A host is not one.
    #[error("host {0} of the URL is not a name or an address (an IPv6 address stands in brackets)")]
    Host(usize),
    /// A port is not one.
    #[error("the port of host {0} of the URL is not a number from 1 to 65535")]
    Port(usize),
    /// Several hosts where there can be one.
    #[error("a single server has one host; several belong to `redis+sentinel://` or `redis+cluster://`")]
    ManyHosts,
    /// More hosts than can be meant.
    #[error("the URL names more than {MAX_HOSTS} hosts")]
    TooManyHosts,
    /// User or password have a `%` that is no encoding, or are not UTF-8.
    #[error("user or password of the URL are not percent-encoded UTF-8")]
    Encoding,
    /// There is an `@` behind the hosts.
    #[error(
        "an `@` stands behind the hosts; write `/`, `?`, `#` and `@` in user and password as %2F, %3F, %23 and %40"
    )]
    LateAt,
    /// The database is not a number.
    #[error("the path of the URL is not the number of a database")]
    Database,
    /// A cluster has one database.
    #[error("a cluster has no databases to choose from; leave the path out")]
    ClusterDatabase,
    /// The name of the master is missing.
    #[error("the name that the sentinels know the master by is missing: redis+sentinel://HOST:26379/NAME")]
    NoName,
    /// There is more than the forms allow.
    #[error("the URL has a query, a fragment, or a path that is too long")]
    Rest,
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Name or address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Where Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    Single(Address),
    /// A master that sentinels know.
    Sentinel {
        /// The sentinels.
        sentinels: Vec<Address>,
        /// How they call the master.
        name: String,
    },
    /// Nodes of a cluster.
    Cluster(Vec<Address>),
}

/// A URL of Redis, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Where Redis is.
    pub servers: Servers,
    /// Whether it is spoken to over TLS.
    pub tls: bool,
    /// The user of the access control list.
    pub username: Option<String>,
    /// The password.
    pub password: Option<String>,
    /// The number of the database.
    pub database: i64,
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerUrl")
            .field("servers", &self.servers)
            .field("tls", &self.tls)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "redacted"))
            .field("database", &self.database)
            .finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
}

const SCHEMES: [(&str, Kind, bool); 6] = [
    ("redis", Kind::Single, false),
    ("rediss", Kind::Single, true),
    ("redis+sentinel", Kind::Sentinel, false),
    ("rediss+sentinel", Kind::Sentinel, true),
    ("redis+cluster", Kind::Cluster, false),
    ("rediss+cluster", Kind::Cluster, true),
];

impl FromStr for ServerUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(UrlError::Scheme)?;
        let known = SCHEMES.iter().find(|(name, ..)| scheme.eq_ignore_ascii_case(name));
        let (_, kind, tls) = *known.ok_or(UrlError::Scheme)?;
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        if path.contains('@') {
            return Err(UrlError::LateAt);
        }
        if path.contains(['?', '#']) {
            return Err(UrlError::Rest);
        }
        let (user_info, hosts) = match authority.rsplit_once('@') {
            Some((user_info, hosts)) => (user_info, hosts),
            None => ("", authority),
        };
        let (username, password) = match user_info.split_once(':') {
            Some((user, password)) => (decode(user)?, decode(password)?),
            None => (decode(user_info)?, None),
        };
        let mut hosts = addresses(hosts, if kind == Kind::Sentinel { SENTINEL_PORT } else { PORT })?;
        let mut path = path.split('/').skip(1).filter(|part| !part.is_empty());
        let (servers, database) = match kind {
            Kind::Single => {
                let host = hosts.pop().ok_or(UrlError::NoHost)?;
                if !hosts.is_empty() {
                    return Err(UrlError::ManyHosts);
                }
                (Servers::Single(host), database(path.next())?)
            }
            Kind::Sentinel => {
                let name = path.next().ok_or(UrlError::NoName)?;
                let name = decode(name)?.ok_or(UrlError::NoName)?;
                (Servers::Sentinel { sentinels: hosts, name }, database(path.next())?)
            }
            Kind::Cluster => match path.next() {
                None | Some("0") => (Servers::Cluster(hosts), 0),
                Some(_) => return Err(UrlError::ClusterDatabase),
            },
        };
        if path.next().is_some() {
            return Err(UrlError::Rest);
        }
        Ok(Self { servers, tls, username, password, database })
    }
}

/// Text that may be percent-encoded; `None` for no text.
fn decode(text: &str) -> Result<Option<String>, UrlError> {
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once('%') {
        if !behind.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit)) {
            return Err(UrlError::Encoding);
        }
        rest = behind;
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| UrlError::Encoding)?;
    Ok((!decoded.is_empty()).then(|| decoded.into_owned()))
}

fn database(path: Option<&str>) -> Result<i64, UrlError> {
    let Some(text) = path else { return Ok(0) };
    text.parse::<u16>().map(i64::from).map_err(|_| UrlError::Database)
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, UrlError> {
    if hosts.is_empty() {
        return Err(UrlError::NoHost);
    }
    if hosts.split(',').count() > MAX_HOSTS {
        return Err(UrlError::TooManyHosts);
    }
    hosts.split(',').enumerate().map(|(index, host)| address(host, index + 1, default_port)).collect()
}

fn address(text: &str, place: usize, default_port: u16) -> Result<Address, UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(inner) => {
            let (host, behind) = inner.split_once(']').ok_or(UrlError::Host(place))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(UrlError::Host(place));
            }
            let port = match behind {
                "" => None,
                _ => Some(behind.strip_prefix(':').ok_or(UrlError::Port(place))?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_v6 = text.starts_with('[');
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if host.is_empty() || host.len() > 253 || !(is_v6 || host.bytes().all(legal)) {
        return Err(UrlError::Host(place));
    }
    let port = match port {
        None => default_port,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port != 0).ok_or(UrlError::Port(place))?
        }
        Some(_) => return Err(UrlError::Port(place)),
    };
    Ok(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests;
