//! The options of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::config_file::{Address, Domain};

/// Options of `serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = super::help::HELP)]
pub struct Args {
    /// Images to export: IMAGE[,OPTION]...; exported as /IMAGE without its extension, unless an option is
    /// name=/PATH
    #[arg(value_name = "IMAGE[,OPTIONS]")]
    pub images: Vec<String>,
    /// Export an image under this name
    #[arg(short, long, value_name = "NAME=IMAGE[,OPTIONS]")]
    pub export: Vec<String>,
    /// The configuration file (TOML); it has all these options and more. Options here have precedence
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The address to listen on; the default port is 2049 (default: 127.0.0.1 and ::1)
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    pub listen: Vec<Address>,
    /// The directory for what outlives the server (default: $STATE_DIRECTORY; for root /var/lib/ivers/serve,
    /// for others ivers/serve under $XDG_STATE_HOME or ~/.local/state)
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Serve statistics (Prometheus text over HTTP) at this address, as 127.0.0.1:9149
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// The lease time: a silent client loses its state after so long, 1 to 3600 (default: 90)
    #[arg(long, value_name = "SECONDS")]
    pub lease: Option<u32>,
    /// The number of threads that serve, 3 to 256 (default: 16)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// How long a thread polls for the next request of a client before it sleeps, in microseconds, at most
    /// 1000 (default: 100; with a single processor 0)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1000))]
    pub busy_poll: Option<u16>,
    /// The certificate of the server with its chain (PEM); offers RPC with TLS
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Authorities that sign certificates of clients (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_client_authorities: Option<PathBuf>,
    /// Send owners as NAME@DOMAIN, by /etc/passwd and /etc/group (default: as numbers; clients that send
    /// numbers always get numbers)
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<Domain>,
    /// Grant no delegations
    #[arg(long)]
    pub no_delegations: bool,
    /// Run without the sandbox (for debugging)
    #[arg(long)]
    pub no_sandbox: bool,
    /// The format of messages on standard error (default: text)
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    pub log_format: Option<String>,
}
