//! The command line: what `drawbridge` accepts. Names here are a contract; add to them, don't rename.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{AuthMode, Inputs, Overrides, Secret};

/// A gateway for the Model Context Protocol: one URL in front of many MCP servers.
#[derive(Debug, Parser)]
#[command(name = "drawbridge", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start with the built-in demo backend, without any configuration, and print how to connect.
    Quickstart(QuickstartArgs),
    /// Run the gateway.
    Serve(ServeArgs),
    /// Validate a configuration; exits with 0, or with 2 and what to change where.
    Check(CheckArgs),
    /// Run the demo backend alone: an MCP server that shows every feature.
    DemoServer(DemoServerArgs),
    /// Run a command and end all its descendants when standard input closes.
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// Arguments of `quickstart`.
#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Address for MCP clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Address for operators; port 0 takes a free one [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
}

/// Arguments of `serve`. Each wins over its environment variable, and that over the file.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG")]
    pub config: Option<PathBuf>,
    /// A list of MCP servers as hosts keep it: mcp.json, claude_desktop_config.json, ...
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_MCP_SERVERS")]
    pub mcp_servers: Option<PathBuf>,
    /// Address for MCP clients; port 0 takes a free one [default: 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Address for operators; port 0 takes a free one [default: 127.0.0.1:9090].
    #[arg(long, value_name = "ADDRESS", env = "DRAWBRIDGE_ADMIN_LISTEN")]
    pub admin_listen: Option<SocketAddr>,
    /// The URL under which clients reach the gateway.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_PUBLIC_URL")]
    pub public_url: Option<String>,
    /// Redis for shared state: redis://, redis+sentinel:// or redis+cluster://, with rediss over TLS.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_REDIS", hide_env_values = true, value_parser = secret)]
    pub redis: Option<Secret>,
    /// Database for durable records: postgres://USER:PASSWORD@HOST/NAME or sqlite:FILE.
    #[arg(long, value_name = "URL", env = "DRAWBRIDGE_DATABASE", hide_env_values = true, value_parser = secret)]
    pub database: Option<Secret>,
    /// How callers prove who they are.
    #[arg(long, value_name = "MODE", env = "DRAWBRIDGE_AUTH")]
    pub auth: Option<AuthMode>,
    /// Name of this instance in the log.
    #[arg(long, value_name = "NAME", env = "DRAWBRIDGE_INSTANCE_ID")]
    pub instance_id: Option<String>,
}

impl ServeArgs {
    /// What to load: the files and overrides named here, in the environment `env`.
    pub fn inputs(self, env: HashMap<String, String>) -> Inputs {
        let overrides = Overrides {
            listen: self.listen,
            admin_listen: self.admin_listen,
            public_url: self.public_url,
            redis: self.redis,
            database: self.database,
            auth: self.auth,
            instance_id: self.instance_id,
        };
        Inputs { config: self.config, mcp_servers: self.mcp_servers, env, overrides }
    }
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration file.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_CONFIG", required_unless_present = "mcp_servers")]
    pub config: Option<PathBuf>,
    /// A list of MCP servers as hosts keep it.
    #[arg(long, value_name = "FILE", env = "DRAWBRIDGE_MCP_SERVERS")]
    pub mcp_servers: Option<PathBuf>,
}

impl CheckArgs {
    /// What to load: the files named here alone, in the environment `env`.
    pub fn inputs(self, env: HashMap<String, String>) -> Inputs {
        Inputs { config: self.config, mcp_servers: self.mcp_servers, env, overrides: Overrides::default() }
    }
}

/// Arguments of `demo-server`.
#[derive(Debug, Args)]
pub struct DemoServerArgs {
    /// Speak over standard input and output.
    #[arg(long, conflicts_with = "listen")]
    pub stdio: bool,
    /// Speak HTTP on this address; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "stdio")]
    pub listen: Option<SocketAddr>,
}

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use clap::{CommandFactory, Parser};

    use super::{Cli, Command};
    use crate::config::AuthMode;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_takes_every_flag_of_the_contract() {
        let line = "drawbridge serve --config c.yaml --mcp-servers mcp.json --listen 127.0.0.1:0 \
                    --admin-listen 127.0.0.1:1 --public-url https://a.example --redis redis://:hunter2@a \
                    --database postgres://a --auth tokens --instance-id one";
        let Ok(Command::Serve(serve)) = parse(line) else { panic!("refused") };
        assert!(!format!("{serve:?}").contains("hunter2"));
        let inputs = serve.inputs(HashMap::new());
        assert_eq!(inputs.config, Some("c.yaml".into()));
        assert_eq!(inputs.mcp_servers, Some("mcp.json".into()));
        assert_eq!(inputs.overrides.listen, Some("127.0.0.1:0".parse().unwrap()));
        assert_eq!(inputs.overrides.auth, Some(AuthMode::Tokens));
        assert_eq!(inputs.overrides.redis.unwrap().expose(), "redis://:hunter2@a");
    }

    #[test]
    fn every_flag_of_serve_has_a_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments() {
            let flag = argument.get_long().unwrap();
            let variable = format!("DRAWBRIDGE_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().and_then(|env| env.to_str()), Some(variable.as_str()), "--{flag}");
        }
    }

    #[test]
    fn guard_passes_everything_on() {
        let Ok(Command::Guard(guard)) = parse("drawbridge guard -- npx -y --help -- x") else {
            panic!("refused")
        };
        assert_eq!(guard.command, ["npx", "-y", "--help", "--", "x"]);
        assert!(parse("drawbridge guard").is_err());
    }

    #[test]
    fn what_can_not_be_meant_is_refused() {
        assert!(parse("drawbridge demo-server").is_err());
        assert!(parse("drawbridge demo-server --stdio --listen 127.0.0.1:0").is_err());
        assert!(parse("drawbridge check").is_err());
        assert!(parse("drawbridge check --mcp-servers mcp.json").is_ok());
        assert!(parse("drawbridge quickstart").is_ok());
    }
}
