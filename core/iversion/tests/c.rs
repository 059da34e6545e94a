//! The C header `include/iversion.h`, compiled in each of its forms and run.
//!
//! Needs a C and a C++ compiler: `$CC` and `$CXX`, or `cc` and `c++`.
#![cfg(not(loom))]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Runs a command that must succeed with an empty standard error. Returns its standard output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles a source file of `tests/c` without any warning.
fn compile(compiler: [&str; 2], source: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let [variable, default] = compiler;
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("program");
    let tests = Path::new(HERE).join("tests/c");
    run(Command::new(env::var(variable).unwrap_or(default.into()))
        .args(["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror", "-pthread"])
        .arg(format!("-I{HERE}/../../include"))
        .args(options)
        .arg("-o")
        .args([&program, &tests.join(source)]));
    (folder, program)
}

fn vectors(compiler: [&str; 2], options: &[&str]) {
    let (_folder, program) = compile(compiler, "vectors.c", options);
    let file = Path::new(HERE).join("tests/vectors.txt");
    let expected =
        include_str!("vectors.txt").lines().filter(|l| !l.starts_with('#') && l.contains('=')).count();
    assert_eq!(run(Command::new(program).arg(file)).trim(), expected.to_string());
}

const C: [&str; 2] = ["CC", "cc"];
const CXX: [&str; 2] = ["CXX", "c++"];

#[test]
fn vectors_c11() {
    vectors(C, &["-std=c11"]);
}

#[test]
fn vectors_cxx11() {
    vectors(CXX, &["-xc++", "-std=c++11"]);
}

#[test]
fn vectors_kernel() {
    vectors(C, &["-std=gnu11", "-D__KERNEL__", &format!("-I{HERE}/tests/c/kernel")]);
}

#[test]
fn hammer_c11() {
    let (_folder, program) = compile(C, "hammer.c", &["-std=c11"]);
    println!("{}", run(Command::new(program).arg("1")));
}

/// Compiles and runs the example that documents the header.
#[test]
fn the_example_prints_what_it_says() {
    let (_folder, program) = compile(C, "../../../../docs/examples/counter.c", &["-std=c11"]);
    let readme = std::fs::read_to_string(Path::new(HERE).join("../../include/README.md")).unwrap();
    let printed = run(&mut Command::new(program));
    assert_eq!(printed.lines().count(), 1);
    assert!(readme.contains(printed.trim()), "include/README.md does not show: {printed}");
}
