//! A build with `make` and the system's compiler over a generated tree of C files. It is not a kernel, but it
//! uses a filesystem like a kernel build: it reads many small files through include paths, writes each object
//! and dependency list under a temporary name and renames it, and makes an archive per directory and a
//! program from these. A second `make` checks everything and finds nothing to do.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::{find_program, run};

/// Source files per directory.
const UNITS: u64 = 10;
/// Shared headers per source file; each file also has a header that no other includes.
const HEADERS: u64 = 8;
/// Functions per source file, so that an object has a few KiB.
const FUNCTIONS: u64 = 6;

/// `PART` stands for a directory, `OBJECTS` for its objects.
const ARCHIVE: &str = "
PART/built-in.a: OBJECTS
	rm -f $@.tmp && $(AR) rcs $@.tmp $^ && mv -f $@.tmp $@
";

const MAKEFILE: &str = "
MAKEFLAGS += -r
CC = cc
AR = ar
SOURCES := main.c $(wildcard part*/*.c)

program: main.o $(sort $(addsuffix built-in.a,$(dir $(wildcard part*/*.c))))
	$(CC) -o $@.tmp $^ && mv -f $@.tmp $@

%.o: %.c
	$(CC) -O2 -pipe -Iinclude -MMD -MP -MT $@ -MF $*.d.tmp -c -o $@.tmp $< && mv -f $*.d.tmp $*.d && mv -f \
	$@.tmp $@

-include $(SOURCES:.c=.d)
";

/// Returns the reason why builds are not possible here.
pub(crate) fn missing() -> Option<String> {
    let is_missing = ["make", "cc", "ar"].iter().any(|program| find_program(program).is_none());
    is_missing.then(|| super::install::missing("gcc make"))
}

fn headers(units: u64) -> u64 {
    units.div_ceil(4) + HEADERS
}

/// Returns the value that a header adds to the sum that the program prints.
fn constant(header: u64) -> u64 {
    header * 7 + 3
}

/// Returns the shared headers of a source file; the set differs between files.
fn included(unit: u64, units: u64) -> impl Iterator<Item = u64> {
    (0..HEADERS).map(move |nth| (unit * 5 + nth) % headers(units))
}

fn header(number: u64) -> String {
    let mut text = format!("#ifndef H{number}\n#define H{number}\n#include <stddef.h>\n");
    let _ = writeln!(text, "#define CONSTANT_{number} {}UL", constant(number));
    let _ = writeln!(
        text,
        "struct thing_{number} {{ unsigned long count; struct thing_{number} *next; char name[32]; }};"
    );
    let _ = writeln!(
        text,
        "static inline unsigned long length_{number}(const struct thing_{number} *thing)\n{{\n\tunsigned \
            long sum = 0;\n\t\
         for (; thing != NULL; thing = thing->next)\n\t\tsum += thing->count;\n\treturn sum;\n}}\n#endif"
    );
    text
}

fn source(unit: u64, units: u64) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n");
    for header in included(unit, units) {
        let _ = writeln!(text, "#include \"h{header}.h\"");
    }
    let _ = writeln!(text, "#include \"unit{unit}.h\"");
    for function in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "static unsigned long step_{function}(unsigned long value, char *buffer, size_t size)\n{{\n\t\
             snprintf(buffer, size, \"unit {unit}, step {function}: %lu\", value);\n\t\
             for (size_t at = 0; at < strlen(buffer); at++)\n\t\tvalue = value * 31 + (unsigned \
             char)buffer[at];\n\t\
             return value;\n}}"
        );
    }
    let _ = writeln!(
        text,
        "unsigned long unit{unit}(void)\n{{\n\tchar buffer[64];\n\tunsigned long noise = 0, sum = {unit};"
    );
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "\tnoise += step_{function}(noise, buffer, sizeof(buffer));");
    }
    for header in included(unit, units) {
        let _ =
            writeln!(text, "\tstruct thing_{header} thing_{header} = {{ CONSTANT_{header}, NULL, \"\" }};");
        let _ = writeln!(text, "\tsum += length_{header}(&thing_{header});");
    }
    text + "\treturn noise == 1 ? 0 : sum;\n}\n"
}

/// Writes a tree of this number of source files into an existing directory.
pub(crate) fn lay_out(dir: &Path, units: u64) -> Result<()> {
    let put = |name: String, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    std::fs::create_dir(dir.join("include"))?;
    (0..headers(units)).try_for_each(|number| put(format!("include/h{number}.h"), header(number)))?;
    let mut makefile = MAKEFILE.to_owned();
    let (mut declared, mut called) = (String::new(), String::new());
    for part in 0..units.div_ceil(UNITS) {
        std::fs::create_dir(dir.join(format!("part{part}")))?;
        let mut objects = Vec::new();
        for unit in part * UNITS..units.min((part + 1) * UNITS) {
            put(format!("include/unit{unit}.h"), format!("unsigned long unit{unit}(void);\n"))?;
            put(format!("part{part}/unit{unit}.c"), source(unit, units))?;
            objects.push(format!("part{part}/unit{unit}.o"));
            let _ = writeln!(declared, "#include \"unit{unit}.h\"");
            let _ = writeln!(called, "\tsum += unit{unit}();");
        }
        makefile += &ARCHIVE.replace("PART", &format!("part{part}")).replace("OBJECTS", &objects.join(" "));
    }
    put("Makefile".to_owned(), makefile)?;
    let main = format!(
        "#include <stdio.h>\n{declared}int main(void)\n{{\n\tunsigned long sum = \
            0;\n{called}\tprintf(\"%lu\\n\", sum);\n\treturn 0;\n}}\n"
    );
    put("main.c".to_owned(), main)
}

fn make(dir: &Path) -> Command {
    let mut make = Command::new("make");
    // This process can be a child of another `make`.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        make.env_remove(name);
    }
    make.arg("-s").arg("-C").arg(dir);
    make
}

/// Builds everything.
pub(crate) fn all(dir: &Path) -> Result<()> {
    run(make(dir).arg(format!("-j{}", super::fio::threads())))
}

/// Runs a second make, which must find nothing to do.
pub(crate) fn again(dir: &Path) -> Result<()> {
    run(make(dir).arg("-q")).context("a second make found something to do")
}

/// Runs the built program and checks its output.
pub(crate) fn check(dir: &Path, units: u64) -> Result<()> {
    let answer = Command::new(dir.join("program")).output().context("the built program does not run")?;
    let sum: u64 = (0..units).map(|unit| unit + included(unit, units).map(constant).sum::<u64>()).sum();
    if answer.stdout == format!("{sum}\n").into_bytes() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.stdout);
    Err(anyhow!("the built program prints {said:?} instead of {sum}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_checked_and_a_second_one_finds_nothing_to_do() {
        if missing().is_some() {
            return;
        }
        for units in [1, 23] {
            let dir = tempfile::tempdir().unwrap();
            lay_out(dir.path(), units).unwrap();
            assert!(again(dir.path()).is_err(), "nothing is built yet");
            all(dir.path()).unwrap();
            check(dir.path(), units).unwrap();
            assert!(check(dir.path(), units + 1).is_err(), "another sum");
            again(dir.path()).unwrap();
            std::fs::write(dir.path().join("include/unit0.h"), "unsigned long unit0(void);\n\n").unwrap();
            assert!(again(dir.path()).is_err(), "sources depend on their headers");
        }
    }
}
