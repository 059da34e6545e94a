//! Development commands: `cargo xtask --help` lists them.

mod bench;
mod book;
mod check_btrfs;
mod check_corpus;
mod check_xfs;
mod checkers;
mod demo;
mod dist;
mod fuzz;
mod kmod;
mod limit;
mod mutants;
mod nfs;
mod nfs_client;
mod release;
mod soak;
mod suites;
mod test_programs;
#[cfg(test)]
mod tidy;
mod verdicts;

use clap::Parser;
use clap::builder::PossibleValuesParser;
use ivers_oracle::machine;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Returns `cargo` without the environment that `cargo xtask` sets for this program: build scripts that read
/// it (ring's does) would run again after each `cargo build` by hand.
fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_"))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Returns where cargo builds, as an absolute path: programs are started in other directories too.
fn target_dir() -> PathBuf {
    let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    std::path::absolute(&target).unwrap_or(target)
}

fn run(step: &str, program: &str, args: &[&str], env: &[(&str, &str)]) -> bool {
    println!("== {step}: {program} {}", args.join(" "));
    let start = Instant::now();
    let mut command = if program == "cargo" { cargo() } else { Command::new(program) };
    command.args(args).envs(env.iter().copied());
    let ended = limit::status(&mut command);
    println!("== {step}: {}", limit::took(start, &ended));
    let ok = ended.as_ref().is_ok_and(|ended| ended.status.success());
    if !ok {
        let why = ended.err().map(|error| format!(": {error:#}")).unwrap_or_default();
        eprintln!("xtask: the step `{step}` failed{why}");
    }
    ok
}

/// Installs missing packages if this process may; otherwise prints one message that lists them.
fn ensure(programs: &[(&str, &str)]) -> bool {
    let is_installed = |program: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir: std::path::PathBuf| dir.join(program).is_file())
    };
    let mut missing: Vec<&str> =
        programs.iter().filter(|(p, _)| !is_installed(p)).map(|(_, package)| *package).collect();
    missing.dedup();
    if missing.is_empty() {
        return true;
    }
    let is_root = std::os::unix::fs::MetadataExt::uid(&match std::fs::metadata("/proc/self") {
        Ok(meta) => meta,
        Err(_) => return false,
    }) == 0;
    if is_root && Path::new("/usr/bin/apt-get").exists() {
        let retries = ["-o", "Acquire::Retries=5"];
        let mut args = [&["install", "-y", "-q", "--no-install-recommends"], &retries[..]].concat();
        args.extend(missing.iter().flat_map(|packages| packages.split(' ')));
        if run("package lists", "apt-get", &[&["update", "-q"], &retries[..]].concat(), &[])
            && run("packages", "apt-get", &args, &[])
        {
            return true;
        }
    }
    eprintln!(
        "xtask: missing packages: {}; on Debian run `apt-get install {}`",
        missing.join(", "),
        missing.join(" ")
    );
    false
}

fn test() -> bool {
    limit::begin();
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("fusermount3", "fuse3"),
        ("getfattr", "attr"),
        ("getfacl", "acl"),
        ("rsync", "rsync"),
        ("nfs-ls", "libnfs-utils"),
        ("restic", "restic"),
        ("tar", "tar"),
        ("bsdtar", "libarchive-tools"),
        ("gcc", "gcc"),
        ("fio", "fio"),
        ("fuse2fs", "fuse2fs libfuse3-dev pkgconf"),
        ("python3", "python3"),
        ("evmctl", "ima-evm-utils"),
        ("openssl", "openssl"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("unadf", "unadf"),
        ("pip3", "python3-pip python3-venv"),
        ("mkfs.fat", "dosfstools"),
        ("mcopy", "mtools"),
        ("makefs", "makefs"),
        ("mkfs.ocfs2", "ocfs2-tools"),
        ("fls", "sleuthkit"),
        ("mandoc", "mandoc"),
        ("man", "man-db"),
        ("zsh", "zsh"),
        ("fish", "fish"),
        ("sfdisk", "fdisk"),
        ("sgdisk", "gdisk"),
        ("qemu-img", "qemu-utils"),
    ];
    let programs = [&programs[..], &machine::PROGRAMS, &dist::PROGRAMS, &dist::PROGRAMS_OF_CHECK].concat();
    ensure(&programs)
        && run("format", "cargo", &["fmt", "--all", "--check"], &[])
        && run("lints", "cargo", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])
        && test_programs::run(beside_tests()).unwrap_or_else(|error| {
            eprintln!("xtask: {error:#}");
            false
        })
}

/// Returns the steps that run beside the test programs, which often wait.
fn beside_tests() -> Vec<test_programs::Program> {
    let step = |name: &str, words: &[&str], flags: [(&str, &str); 1]| {
        let mut command = cargo();
        command.args(words).envs(flags);
        test_programs::Program { name: name.into(), command }
    };
    vec![
        package(),
        step(
            "races",
            &["test", "-p", "ivers-races", "--target-dir", "target/shuttle"],
            [("RUSTFLAGS", "--cfg shuttle -D warnings")],
        ),
        step(
            "memory order",
            &["test", "-p", "iversion", "--test", "loom", "--release", "--target-dir", "target/loom"],
            [("RUSTFLAGS", "--cfg loom")],
        ),
        // With the examples, dependencies have the features that they have for the lints, and are not checked
        // again. The program `ivers` is left out: its documentation would replace that of its library.
        step(
            "documentation",
            &[
                "doc",
                "--workspace",
                "--no-deps",
                "--lib",
                "--examples",
                "--bin=xtask",
                "--bin=ivers-bench",
                "--bin=ivers-nfs-speed",
                "--quiet",
            ],
            [("RUSTDOCFLAGS", "-D warnings")],
        ),
    ]
}

/// Returns the step that packages the program that the tests built. Installing it requires root.
fn package() -> test_programs::Program {
    let this = std::env::current_exe().unwrap_or_else(|_| "cargo-xtask".into());
    let mut command = Command::new(this);
    command.args(["dist", "--binary"]).arg(target_dir().join("debug/ivers"));
    if rustix::process::geteuid().is_root() {
        command.arg("--check");
    }
    test_programs::Program { name: "package".into(), command }
}

/// Development commands of ivers.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Shows in a minute what the change attribute costs and what it tells
    Demo,
    /// Checks format, lints and documentation and runs all tests; CI runs this
    Test,
    /// Runs the long tests, for hours: all steps or one
    Soak {
        /// The step to run
        #[arg(value_parser = PossibleValuesParser::new(soak::STEPS.map(|(name, _)| name)))]
        step: Option<String>,
    },
    /// Measures: with options as in `bench --help`; with DIR (default target/report) everything, on one page
    #[command(disable_help_flag = true, override_usage = "cargo xtask bench [DIR] [OPTION]...")]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Measures the NFSv4 server beside nfs-ganesha, as root
    #[command(disable_help_flag = true)]
    NfsSpeed {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Measures mounts of ours beside fuse-nfs and libnfs, and counts requests
    NfsClientSpeed(nfs_client::speed::Options),
    /// Builds the documents as a book in target/book; requires mdbook
    Book,
    /// Makes the files of a release in target/dist: a static program, a package of Debian, an archive,
    /// checksums and a bill of materials
    Dist {
        /// Package this program instead of a new build; the files go to target/dist-of-binary
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Also install the package in a clean Debian, use it and remove it; requires root
        #[arg(long)]
        check: bool,
    },
    /// Tests `iversion.h` as a Linux kernel module in an emulated machine
    Kmod,
    /// Tests the server with the Linux NFS client in an emulated machine
    Nfs,
    /// Plants mistakes in a copy of the tree and checks that the tests detect each
    Mutants {
        /// Only mutants whose path contains this text
        name: Option<String>,
    },
    /// Compares `ivers check` with btrfs check on images with one damaged field each; needs root
    CheckCorpusBtrfs {
        /// Take one of so many images
        #[arg(default_value_t = 1)]
        step: usize,
        /// Only structures whose name contains this text
        only: Option<String>,
    },
    /// Compares `ivers check` with xfs_repair on images that xfs_db damages; needs root
    CheckCorpusXfs {
        /// Take one of so many images
        #[arg(default_value_t = 1)]
        step: usize,
        /// Only structures whose name contains this text
        only: Option<String>,
    },
    /// Compares `ivers check` with e2fsck and fsck.fat on the images of their tests
    CheckCorpus {
        /// Source trees of e2fsprogs and dosfstools, each with the folder `tests`
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
    },
    /// Fuzzes one target or all in turn; requires a nightly compiler
    Fuzz {
        /// The target to run
        target: Option<String>,
        /// Minutes per target
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// The time limit of one input in seconds; raise it on a busy machine
        #[arg(long, default_value_t = fuzz::INPUT_SECONDS)]
        input_seconds: u64,
        /// Only write the generated inputs of all targets into this directory
        #[arg(long, value_name = "DIR", alias = "seed-corpus", conflicts_with = "target")]
        write_corpus: Option<PathBuf>,
    },
}

/// Runs `ivers-bench` with options, or measures everything for a page.
fn bench(words: &[String]) -> ExitCode {
    if words.first().is_some_and(|word| word.starts_with('-')) {
        return bench::run_options(words).map_or_else(
            |error| {
                eprintln!("xtask: {error}");
                ExitCode::FAILURE
            },
            ExitCode::from,
        );
    }
    let dir = words.first().map_or("target/report", String::as_str);
    exit_code(
        ensure(&[("mkfs.ext4", "e2fsprogs"), ("fusermount3", "fuse3")])
            && bench::write_page(Path::new(dir), words.get(1..).unwrap_or_default()),
    )
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    exit_code(match Task::parse() {
        Task::Test => test(),
        Task::Soak { step } => soak::soak(step.as_deref()),
        Task::Book => book::book(),
        Task::Dist { binary, check } => ensure(&dist::PROGRAMS) && dist::dist(binary.as_deref(), check),
        Task::Kmod => kmod::kmod(),
        Task::Nfs => nfs::nfs(),
        Task::Mutants { name } => mutants::mutants(name.as_deref()),
        Task::CheckCorpusBtrfs { step, only } => {
            ensure(&[("btrfs", "btrfs-progs"), ("setfattr", "attr")])
                && check_btrfs::check_btrfs(step, only.as_deref())
        }
        Task::CheckCorpusXfs { step, only } => {
            ensure(&[("xfs_db", "xfsprogs"), ("xfs_io", "xfsprogs"), ("setfattr", "attr")])
                && check_xfs::check_xfs(step, only.as_deref())
        }
        Task::CheckCorpus { dirs } => {
            ensure(&[("e2fsck", "e2fsprogs"), ("fsck.fat", "dosfstools"), ("xxd", "xxd"), ("gzip", "gzip")])
                && check_corpus::check_corpus(&dirs)
        }
        Task::Demo => ensure(&[("mkfs.ext4", "e2fsprogs")]) && demo::demo(),
        Task::Bench { words } => return bench(&words),
        Task::NfsSpeed { options } => {
            ensure(&[("mkfs.ext4", "e2fsprogs"), bench::GANESHA[0]]) && bench::nfs_speed(&options)
        }
        Task::NfsClientSpeed(options) => {
            ensure(&[("mkfs.ext4", "e2fsprogs"), ("tar", "tar")])
                && nfs_client::speed::nfs_client_speed(&options)
        }
        Task::Fuzz { write_corpus: Some(dir), .. } => fuzz::write_inputs(&dir),
        Task::Fuzz { target, minutes, input_seconds, .. } => {
            fuzz::fuzz(target.as_deref(), minutes, input_seconds)
        }
    })
}
