//! A build: `make` and the machine's compiler over a tree of C files that is written here. It is no kernel, but it does to a filesystem what
//! building one does: many small files are read through paths of headers, each object and each list of dependencies comes under another
//! name first and is renamed, objects become an archive a directory, and these a program. A second `make` looks at everything and finds
//! nothing to do.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::super::{find_program, run};
use crate::failure::{FAILED, failure};

/// In a directory.
const UNITS: u64 = 10;
/// Of a unit's own; each has one more that nobody shares.
const HEADERS: u64 = 8;
/// What a unit has besides, so that an object is some KiB.
const FUNCTIONS: u64 = 6;

/// `part` stands for a directory, `objects` for what it archives.
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
	$(CC) -O2 -pipe -Iinclude -MMD -MP -MT $@ -MF $*.d.tmp -c -o $@.tmp $< && mv -f $*.d.tmp $*.d && mv -f $@.tmp $@

-include $(SOURCES:.c=.d)
";

/// Why there can be no builds.
pub(super) fn missing() -> Option<String> {
    let is_missing = ["make", "cc", "ar"].iter().any(|program| find_program(program).is_none());
    is_missing.then(|| super::install::missing("gcc make"))
}

fn headers(units: u64) -> u64 {
    units.div_ceil(4) + HEADERS
}

/// What a header gives to the sum that the program prints.
fn constant(header: u64) -> u64 {
    header * 7 + 3
}

/// The shared headers that a unit includes: others each time.
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
        "static inline unsigned long length_{number}(const struct thing_{number} *thing)\n{{\n\tunsigned long sum = 0;\n\t\
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
             for (size_t at = 0; at < strlen(buffer); at++)\n\t\tvalue = value * 31 + (unsigned char)buffer[at];\n\t\
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

/// Write the tree of so many units into a directory that is there.
pub(super) fn lay_out(dir: &Path, units: u64) -> Result<()> {
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
        "#include <stdio.h>\n{declared}int main(void)\n{{\n\tunsigned long sum = 0;\n{called}\tprintf(\"%lu\\n\", sum);\n\treturn 0;\n}}\n"
    );
    put("main.c".to_owned(), main)
}

fn make(dir: &Path) -> Command {
    let mut make = Command::new("make");
    // Whoever has started this may be a `make` himself.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        make.env_remove(name);
    }
    make.arg("-s").arg("-C").arg(dir);
    make
}

/// Build everything.
pub(super) fn all(dir: &Path) -> Result<()> {
    run(make(dir).arg(format!("-j{}", super::fio::threads())))
}

/// Look at everything; there must be nothing to do.
pub(super) fn again(dir: &Path) -> Result<()> {
    run(make(dir).arg("-q")).context("something was left to do for a second make")
}

/// What was built has to be right.
pub(super) fn check(dir: &Path, units: u64) -> Result<()> {
    let answer = Command::new(dir.join("program")).output().context("what was built does not run")?;
    let sum: u64 = (0..units).map(|unit| unit + included(unit, units).map(constant).sum::<u64>()).sum();
    if answer.stdout == format!("{sum}\n").into_bytes() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.stdout);
    Err(failure(FAILED, format!("what was built says {said:?} and not {sum}")))
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
            assert!(again(dir.path()).is_err(), "everything is to be done");
            all(dir.path()).unwrap();
            check(dir.path(), units).unwrap();
            assert!(check(dir.path(), units + 1).is_err(), "another sum");
            again(dir.path()).unwrap();
            std::fs::write(dir.path().join("include/unit0.h"), "unsigned long unit0(void);\n\n").unwrap();
            assert!(again(dir.path()).is_err(), "what includes a header depends on it");
        }
    }
}
