//! The second half of `ivers serve --help`.

/// Text after the list of options. A paragraph is one line, since the viewer wraps it; lists are narrower
/// than 80 columns.
pub const HELP: &str = "\
Options of an export, separated by commas (\\, is a comma in a name):
  name=/PATH       the name of the export (default: that of the image without
                   extension); no export is below another
  ro, rw           read-only, writable (the default). An image that can only
                   be read is served read-only, and standard error says why;
                   refused if rw is given
  clients=LIST     addresses and networks that have access, separated by
                   semicolons (default: this machine only)
  root_squash, no_root_squash
                   whether user and group 0 are mapped to nobody (the
                   default), who cannot create files in a fresh image
  all_squash       map all users to nobody
  anonuid=N, anongid=N
                   user and group of nobody (default: 65534)
  async            answer changes of names and attributes before they are
                   durable; a crash may lose those of the last seconds
                   (commit=). Data is durable when WRITE and COMMIT say so,
                   with the names that lead to it
  sec=LIST         flavours, separated by semicolons: sys (the default), none
  tls=required     require TLS
  tls=certificate  require TLS with a certificate of the client
  names=LIST       the DNS names of the certificate must include one of these
  type=TYPE        auto (the default), ext4 (also ext2 and ext3), fat, affs,
                   xfs, btrfs, ocfs2, ufs or mem
  offset=, partition=, cache=, iversion=, lazytime, lazyversion, relatime,
  noatime, strictatime, sync, dirsync, commit=, trust-foreign, norecovery,
  uid=, gid=, umask=, fmask=, dmask=, utc_offset=, subvol=, subvolid=,
  degraded, compress=
                   as in `ivers mount`

The server stays in the foreground; messages go to standard error. On SIGHUP it reads its file, the \
certificates and the names of owners again. Clients, access and names of exports may change, and exports may \
vanish (their filehandles become stale); images are not opened again. On an error nothing changes, and a \
message says why. If standard input is a terminal, SIGHUP ends the server.

SIGTERM or SIGINT shut it down: it accepts no new calls, finishes those in progress (for at most five \
seconds), writes back everything and closes the images. Another signal, a second later or more, ends it at \
once, which is a crash for images and clients. The state of clients survives both: it is stored in the state \
directory, and clients reclaim it after the next start, within a grace period of at most one and a half \
times the lease time.

Before it reads an image, the process enters a sandbox (Landlock and seccomp): it can open only files of its \
state directory, and cannot connect to any host. A helper process, which never reads the images, opens the \
files for SIGHUP and connects to clients of NFSv4.0 for callbacks.

Sockets that systemd passes (LISTEN_FDS) replace --listen. Readiness is reported to NOTIFY_SOCKET. Unit \
files are in packaging/systemd.

The file of --config (relative paths in it start in its directory; if it is a descriptor such as /dev/stdin \
or <(...), they start in the current directory, and SIGHUP does not read it again):
  listen = [\"192.0.2.1\", \"[2001:db8::1]:2049\"]
  state = \"/var/lib/ivers/serve\"
  metrics = \"127.0.0.1:9149\"     # Prometheus text over HTTP
  lease_s = 90
  log_format = \"json\"            # also: threads, delegations, sandbox

  [limits]                         # also: client_connections, total_bytes,
  connections = 1024               # client_bytes, clients, sessions,
                                   # client_stateids, client_delegations,
                                   # client_locks
  [tls]
  certificate = \"server.pem\"
  key = \"server.key\"
  client_authorities = \"clients.pem\"
  client_required = false          # true: require a certificate of clients

  [owners]                         # names; without this section, and to
  domain = \"example.org\"           # clients that send numbers: numbers
  passwd = \"/etc/passwd\"           # the files with the names
  group = \"/etc/group\"

  [[export]]
  name = \"/photos\"
  image = \"/srv/photos.img\"
  options = \"noatime,cache=1G\"   # as in ivers mount; also: type
  access = \"ro\"                  # also: clients, root_squash, all_squash,
                                   # anonuid, anongid, async, sec, tls,
                                   # names
  [[export.rule]]                  # the first rule that lists the address
  clients = [\"192.0.2.7\"]        # replaces the settings above
  access = \"rw\"

On a client (Linux):
  mount -t nfs4 -o vers=4.2 HOST:/photos /mnt

JSON, printed when the server is ready: pid, addresses, exports [{name, image, read_only, \
read_only_because}], metrics, state, sandbox.

Examples:
  ivers serve photos.img
  ivers serve --listen 0.0.0.0 --export photos=/srv/p.img,ro,clients=192.0.2.0/24
  ivers serve --config /etc/ivers/serve.toml
  ivers stats --prometheus /var/lib/ivers/serve";
