//! One connection: dialled, with TLS and login, and driven until it is lost or closed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use drawbridge_core::Tasks;
use drawbridge_core::state::InstanceId;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo,
    RedisError, RedisResult, Value,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::options::{PasswordProvider, RedisOptions};
use crate::tls;
use crate::url::Address;

/// Commands that wait to be written.
const QUEUE: usize = 512;
/// Commands that wait for their answer.
const IN_FLIGHT: usize = 4096;

/// Why there is no connection.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}: no connection within {1:?}")]
    TimedOut(Address, Duration),
    #[error("{0}: {1}")]
    Io(Address, String),
    #[error("{0} refused the login: {1}")]
    Login(Address, String),
    #[error("{0} is not a master")]
    NotMaster(Address),
    #[error("the password can't be had: {0}")]
    Password(String),
    #[error("{0}")]
    Discovery(String),
}

/// Takes what the server says unasked. Called where the connection is read, so it must not wait.
pub(crate) type Pushes = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// What a connection is for, as it is called in `CLIENT LIST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Commands,
    Topics,
    Reader,
    Discovery,
}

impl Role {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Commands => "commands",
            Self::Topics => "topics",
            Self::Reader => "reader",
            Self::Discovery => "discovery",
        }
    }
}

/// Opens connections.
pub(crate) struct Dialer {
    tls: Option<TlsConnector>,
    username: Option<String>,
    password: Option<PasswordProvider>,
    database: i64,
    timeout: Duration,
    instance: InstanceId,
    tasks: Tasks,
}

/// A connection that stands, or did. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Link {
    connection: MultiplexedConnection,
    over: CancellationToken,
}

impl Dialer {
    pub(crate) fn new(options: &RedisOptions, instance: InstanceId, tasks: Tasks) -> Result<Self, Error> {
        let tls = options.url.tls.then(|| tls::connector(&options.ca_bundles)).transpose()?;
        Ok(Self {
            tls,
            username: options.username.clone(),
            password: options.password.clone(),
            database: options.url.database,
            timeout: options.timeout,
            instance,
            tasks,
        })
    }

    /// Connects and logs in. Must be called on the runtime that is to drive the connection.
    pub(crate) async fn dial(
        &self,
        address: &Address,
        role: Role,
        pushes: Option<Pushes>,
    ) -> Result<Link, LinkError> {
        let mut info = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(self.database)
            .set_skip_set_lib_name();
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password().map_err(LinkError::Password)?);
        }
        let link = self.open(address, info, pushes).await?;
        let name = format!("drawbridge-{}-{}", self.instance, role.as_str());
        // For operators alone: a user who may not do this goes without.
        let _ = self.within(address, link.send(redis::cmd("CLIENT").arg("SETNAME").arg(name))).await;
        Ok(link)
    }

    /// Connects without login and in the older form of the protocol, as every sentinel speaks it; logs in where that
    /// is refused.
    pub(crate) async fn dial_sentinel(&self, address: &Address) -> Result<Link, LinkError> {
        let plain = RedisConnectionInfo::default().set_skip_set_lib_name();
        let link = self.open(address, plain.clone(), None).await?;
        let answer = self.within(address, link.send(&redis::cmd("PING"))).await;
        let Some(password) = self.password.as_ref().filter(|_| answer.is_err()) else {
            return answer.map(|_| link);
        };
        link.close();
        let mut info = plain.set_password(password().map_err(LinkError::Password)?);
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        self.open(address, info, None).await
    }

    /// The answer of a new connection, within the deadline.
    pub(crate) async fn within<T>(
        &self,
        address: &Address,
        work: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, LinkError> {
        match tokio::time::timeout(self.timeout, work).await {
            Ok(answer) => answer.map_err(|error| refusal(address, &error)),
            Err(_) => Err(LinkError::TimedOut(address.clone(), self.timeout)),
        }
    }

    async fn open(
        &self,
        address: &Address,
        info: RedisConnectionInfo,
        pushes: Option<Pushes>,
    ) -> Result<Link, LinkError> {
        let opening = async {
            let io = |error: io::Error| LinkError::Io(address.clone(), error.to_string());
            let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(io)?;
            tcp.set_nodelay(true).map_err(io)?;
            match &self.tls {
                None => self.log_in(address, &info, tcp, pushes).await,
                Some(tls) => {
                    let name = ServerName::try_from(address.host.clone())
                        .map_err(|error| LinkError::Io(address.clone(), error.to_string()))?;
                    let stream = tls.connect(name, tcp).await.map_err(io)?;
                    self.log_in(address, &info, stream, pushes).await
                }
            }
        };
        match tokio::time::timeout(self.timeout, Box::pin(opening)).await {
            Ok(link) => link,
            Err(_) => Err(LinkError::TimedOut(address.clone(), self.timeout)),
        }
    }

    async fn log_in(
        &self,
        address: &Address,
        info: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        pushes: Option<Pushes>,
    ) -> Result<Link, LinkError> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_concurrency_limit(IN_FLIGHT);
        if let Some(pushes) = pushes {
            config = config.set_push_sender(move |info| {
                pushes(info);
                Ok::<(), ()>(())
            });
        }
        let connecting = MultiplexedConnection::new_with_config(info, stream, config);
        let (connection, driver) = connecting.await.map_err(|error| refusal(address, &error))?;
        let over = CancellationToken::new();
        let (closed, guard) = (over.clone(), over.clone().drop_guard());
        self.tasks.spawn("redis connection", async move {
            // However this ends, the connection is over.
            let _guard = guard;
            driver.with_cancellation_token(&closed).await;
        });
        Ok(Link { connection, over })
    }
}

/// What a server said to a login, or why it said nothing.
fn refusal(address: &Address, error: &RedisError) -> LinkError {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => LinkError::Login(address.clone(), describe(error)),
        _ if error.kind() == ErrorKind::AuthenticationFailed => {
            LinkError::Login(address.clone(), describe(error))
        }
        _ => LinkError::Io(address.clone(), describe(error)),
    }
}

/// An error as operators should read it: what the server said, where it said something.
pub(crate) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

impl Link {
    /// The answer to one command; an error of the server is an error.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.clone().send_packed_command(command).await?.extract_error()
    }

    /// The answers to several commands that nothing comes between, each perhaps an error of the server.
    pub(crate) async fn send_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        self.connection.clone().send_packed_commands(commands, 0, commands.len()).await
    }

    /// Closes it. What waits for an answer gets none.
    pub(crate) fn close(&self) {
        self.over.cancel();
    }

    /// Whether it was lost or closed.
    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Resolves when it was lost or closed.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }
}
