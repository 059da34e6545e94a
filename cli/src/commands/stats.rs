//! `stats`: the counters of a mount or a server.

use std::path::PathBuf;

use anyhow::Result;
use serde_json::Value;

use super::serve::stats::{label, lines, prometheus};
use super::serve::stats_server;
use crate::file_info;
use crate::output::failure::{REFUSED, failure};
use crate::output::format::Shown;
use crate::output::print;

const HELP: &str = "\
JSON: changes, queries, bumps, bumps_deferred (by lazyversion), bumps_forced (ivers could not tell in time \
whether something had changed), bumps_avoided, inode_updates and its parts (inode_updates_times, _version, \
_allocation, _metadata), inode_updates_avoided, journal_blocks, journal_bytes, data_bytes, \
written_back_bytes, and what the image was asked for: device_reads, device_read_bytes, device_writes, \
device_written_bytes, device_flushes. A mount of an NFS server also has server_requests (round trips), \
server_retries, server_connections, server_sessions, server_attribute_hits and server_access_hits (what the \
cache answered), and the number of each operation: server_read, server_write, ... With cache-dir= it also \
has disk_cache_reads (reads without a READ) and counts of blocks: disk_cache_hits, disk_cache_misses, \
disk_cache_stored, disk_cache_damaged and disk_cache_refused.

A server is named by its state directory; the user must be able to write there. JSON: pid, sandbox, boot \
(one more at each start), uptime_s, now (what exists: clients, sessions, opens, locks, delegations, \
connections, ...), total (what has happened since the start), operations {NAME: {calls, errors}}, errors \
{NAME: count}, exports {NAME: {image, read_only, and the counters of a mount}}.

Examples:
  ivers stats mnt
  ivers stats /var/lib/ivers/serve
  ivers stats --prometheus mnt";

/// Options of `stats`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A directory on a mount, or the state directory of a server
    dir: PathBuf,
    /// Print the Prometheus text format
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Runs `ivers stats`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    if let Some(stats) = stats_server::query(&args.dir)? {
        return print_server(&stats, args.prometheus, json);
    }
    let Some(stats) = file_info::served_json_if_any(&args.dir, ivers_fuse::STATS)? else {
        let dir = args.dir.shown();
        let what =
            format!("{dir}: not on an ivers mount, and not the state directory of a running `ivers serve`");
        return Err(failure(REFUSED, what));
    };
    if json {
        return print::json_line(&stats);
    }
    // The label does not depend on the current directory.
    let dir = args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone());
    let dir = label(&dir.shown());
    for (name, value) in stats.as_object().into_iter().flatten() {
        if args.prometheus {
            print::line(format_args!(
                "# TYPE ivers_{name}_total counter\nivers_{name}_total{{mount=\"{dir}\"}} {value}"
            ))?;
        } else {
            print::line(format_args!("{name:<28}{value:>16}"))?;
        }
    }
    Ok(())
}

fn print_server(stats: &Value, as_prometheus: bool, json: bool) -> Result<()> {
    if json {
        return print::json_line(stats);
    }
    if as_prometheus {
        return print::line(prometheus(stats).trim_end());
    }
    lines(stats).iter().try_for_each(print::line)
}
