//! The gateway with its own demo backend: nothing to configure, nothing else to install.

use std::net::{Ipv4Addr, SocketAddr};

use drawbridge_demo::Demo;
use drawbridge_upstream::process::GuardCommand;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cli::QuickstartArgs;
use crate::config::{Backend, BackendKind, Config, HttpBackend, Loaded};
use crate::gateway::Gateway;
use crate::listener::bind;
use crate::{seal_key, telemetry};

/// What runs after a quick start.
pub struct Started {
    /// The gateway.
    pub gateway: Gateway,
    /// The demo backend behind it.
    pub demo: RunningDemo,
}

/// A demo backend on a port of its own.
pub struct RunningDemo {
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Its MCP endpoint.
    pub url: String,
}

impl RunningDemo {
    /// Starts the demo backend on a free port of loopback.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub fn start() -> anyhow::Result<Self> {
        let listener = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), "the demo backend")?;
        let listener = TcpListener::from_std(listener)?;
        let url = format!("http://{}/mcp", listener.local_addr()?);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let demo = Demo::new(tasks.clone());
        let stopped = stop.clone();
        tasks.spawn(async move {
            let served = demo.serve(listener, stopped.cancelled_owned()).await;
            if let Err(e) = served {
                tracing::error!("the demo backend failed: {e}");
            }
        });
        Ok(Self { tasks, stop, url })
    }

    /// Ends it.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        // Streams end with the signal; whoever does not read is not waited for.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), self.tasks.wait()).await;
    }
}

/// Starts the demo backend and a gateway in front of it.
///
/// # Errors
///
/// If an address is taken.
pub async fn start(args: &QuickstartArgs) -> anyhow::Result<Started> {
    let mut config = Config::default();
    config.log.level = "warn".to_owned();
    telemetry::apply(&config.log);
    config.public.listen = args.listen.unwrap_or(config.public.listen);
    config.admin.listen = args.admin_listen.unwrap_or(config.admin.listen);
    anyhow::ensure!(
        config.public.listen.ip().is_loopback(),
        "quickstart asks nobody who they are, so it listens on loopback only; use serve with a configuration for other addresses"
    );
    let demo = RunningDemo::start()?;
    let backend = Backend::new(BackendKind::Http(HttpBackend::new(demo.url.parse()?)));
    config.backends.insert("demo".to_owned(), backend);
    let loaded = Loaded { config, ..Loaded::default() };
    let gateway = Gateway::start(loaded, Some(vec![seal_key::ephemeral()]), &GuardCommand::default()).await?;
    Ok(Started { gateway, demo })
}

/// Settings for the common hosts, to be pasted as they are.
pub fn settings(public: SocketAddr) -> String {
    let url = format!("http://{public}/mcp");
    format!(
        r#"
Drawbridge is running with its demo backend. Point a host at:

    {url}

Claude Code
    claude mcp add --transport http drawbridge {url}

Cursor and others that read mcp.json with URLs
    {{ "mcpServers": {{ "drawbridge": {{ "url": "{url}" }} }} }}

VS Code (.vscode/mcp.json)
    {{ "servers": {{ "drawbridge": {{ "type": "http", "url": "{url}" }} }} }}

Codex (~/.codex/config.toml)
    [mcp_servers.drawbridge]
    url = "{url}"

Claude Desktop and other hosts that only start programs
    npx mcp-remote {url} --allow-http

MCP Inspector
    npx @modelcontextprotocol/inspector --cli {url} --transport http --method tools/list

Clients of 2024-11-05 (HTTP+SSE)
    {url}/sse

Stop it with Ctrl-C. To serve your own servers: drawbridge serve --mcp-servers mcp.json
"#
    )
}

/// Runs the demo backend alone, over HTTP on `listen` or over standard input and output.
///
/// # Errors
///
/// If the address is taken or a pipe breaks.
pub async fn demo_server(listen: Option<SocketAddr>) -> anyhow::Result<()> {
    let tasks = TaskTracker::new();
    let demo = Demo::new(tasks.clone());
    let Some(address) = listen else {
        demo.stdio(tokio::io::stdin(), tokio::io::stdout()).await?;
        return Ok(());
    };
    let listener = TcpListener::from_std(bind(address, "--listen")?)?;
    let bound = listener.local_addr()?;
    {
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), "listening demo=http://{bound}/mcp");
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    demo.serve(listener, stop).await?;
    tasks.close();
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), tasks.wait()).await;
    Ok(())
}
