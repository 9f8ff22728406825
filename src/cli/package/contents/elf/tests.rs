use super::*;

/// A small program, or what looks like one.
#[derive(Clone, Copy)]
pub(in crate::package::contents) struct Planted {
    pub(in crate::package::contents) class: u8,
    pub(in crate::package::contents) machine: u16,
    pub(in crate::package::contents) kind: u16,
    pub(in crate::package::contents) interpreter: Option<&'static str>,
    pub(in crate::package::contents) libraries: &'static [&'static str],
    pub(in crate::package::contents) versions: &'static [&'static str],
}

/// Static.
pub(in crate::package::contents) const GOOD: Planted = Planted {
    class: CLASS_64,
    machine: X86_64,
    kind: POSITION_INDEPENDENT,
    interpreter: None,
    libraries: &[],
    versions: &[],
};

const LOADER: Option<&str> = Some("/lib64/ld-linux-x86-64.so.2");
/// Where the file lies in memory.
const BASE: u64 = 0x40_0000;
const HEADERS: usize = 64 + 3 * 56;

impl Planted {
    pub(in crate::package::contents) fn bytes(&self) -> Vec<u8> {
        let mut strings = vec![0];
        let mut string = |text: &str| {
            let at = u32::try_from(strings.len()).unwrap();
            strings.extend(text.bytes().chain([0]));
            at
        };
        let loader = self.interpreter.map(&mut string);
        let needed: Vec<u32> = self.libraries.iter().map(|name| string(name)).collect();
        let names: Vec<u32> = self.versions.iter().map(|name| string(name)).collect();
        let versions_at = HEADERS + strings.len();
        let versions = versions(&names);
        let dynamic_at = versions_at + versions.len();
        let address = |at: usize| BASE + u64::try_from(at).unwrap();
        let mut tags: Vec<(u64, u64)> =
            needed.iter().map(|at| (TAG_NEEDED, u64::from(*at))).collect();
        tags.extend([
            (TAG_STRINGS, address(HEADERS)),
            (TAG_VERSIONS, address(versions_at)),
            (0, 0),
        ]);
        let dynamic: Vec<u8> = tags
            .iter()
            .flat_map(|(tag, value)| [tag.to_le_bytes(), value.to_le_bytes()])
            .flatten()
            .collect();
        let whole = dynamic_at + dynamic.len();
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', self.class, LITTLE_ENDIAN]);
        bytes[16..18].copy_from_slice(&self.kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.machine.to_le_bytes());
        bytes[24..32].copy_from_slice(&BASE.to_le_bytes());
        bytes[32..40].copy_from_slice(&64_u64.to_le_bytes());
        bytes[54..56].copy_from_slice(&56_u16.to_le_bytes());
        bytes[56..58].copy_from_slice(&3_u16.to_le_bytes());
        bytes.extend(segment(SEGMENT_LOAD, 0, whole));
        bytes.extend(segment(SEGMENT_DYNAMIC, dynamic_at, dynamic.len()));
        match loader {
            Some(at) => {
                let at = HEADERS + usize::try_from(at).unwrap();
                bytes.extend(segment(SEGMENT_INTERPRETER, at, 1));
            }
            None => bytes.extend(segment(0, 0, 0)),
        }
        [bytes, strings, versions, dynamic].concat()
    }
}

fn segment(kind: u32, at: usize, length: usize) -> Vec<u8> {
    let (at, length) = (u64::try_from(at).unwrap(), u64::try_from(length).unwrap());
    let mut bytes = [kind.to_le_bytes(), [0; 4]].concat();
    for number in [at, BASE + at, BASE + at, length, length, 1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes
}

/// Two files, so that the way from one to the next is gone: the first has the first name only.
fn versions(names: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut files = names.iter().peekable();
    while let Some(name) = files.next() {
        let next: u32 = if files.peek().is_some() { 32 } else { 0 };
        bytes.extend([1_u16.to_le_bytes(), 1_u16.to_le_bytes()].concat());
        bytes.extend([0_u32, 16, next].map(u32::to_le_bytes).concat());
        bytes.extend([0_u32, 0, *name, 0].map(u32::to_le_bytes).concat());
    }
    bytes
}

#[test]
fn a_static_program_and_one_of_an_old_c_library_are_good() {
    assert_eq!(judge(&GOOD.bytes()), Ok(Needs::Nothing));
    let old = Planted {
        interpreter: LOADER,
        libraries: &["libc.so.6", "libgcc_s.so.1"],
        versions: &["GLIBC_2.2.5", "GCC_3.0", "GLIBC_2.28", "GLIBC_2.17"],
        ..GOOD
    };
    assert_eq!(judge(&old.bytes()), Ok(Needs::Glibc(2, 28)));
}

#[test]
fn what_could_not_start_is_refused() {
    let dynamic = Planted { interpreter: LOADER, libraries: &["libc.so.6"], ..GOOD };
    for (planted, expected) in [
        (Planted { machine: 183, ..GOOD }, "is built for aarch64"),
        (Planted { class: 1, machine: 3, ..GOOD }, "is built for x86 of 32 bits"),
        (Planted { class: 1, ..GOOD }, "is built for x86_64, but not of 64 bits"),
        (Planted { kind: 1, ..GOOD }, "is not a program"),
        (Planted { interpreter: Some("/lib/ld-musl-x86_64.so.1"), ..GOOD }, "`/lib/ld-musl-x86"),
        (Planted { interpreter: None, ..dynamic }, "is a library"),
        (Planted { libraries: &["libc.so.6", "libssl.so.3"], ..dynamic }, "`libssl.so.3`"),
        (Planted { versions: &["GLIBC_2.4", "GLIBC_2.32"], ..dynamic }, "needs `GLIBC_2.32`"),
        (Planted { versions: &["GLIBC_ABI_DT_RELR"], ..dynamic }, "needs `GLIBC_ABI_DT_RELR`"),
    ] {
        let refused = judge(&planted.bytes()).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    assert!(judge(b"#!/bin/sh").unwrap_err().contains("is not a Linux program"));
}

#[test]
fn a_damaged_program_is_refused_wherever_it_is_cut() {
    let planted = Planted {
        interpreter: LOADER,
        libraries: &["libc.so.6"],
        versions: &["GLIBC_2.2.5"],
        ..GOOD
    };
    let bytes = planted.bytes();
    assert_eq!(judge(&bytes), Ok(Needs::Glibc(2, 2)));
    for length in 0..bytes.len() {
        judge(&bytes[..length]).unwrap_err();
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn the_needs_of_this_very_program_are_seen() {
    let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    match judge(&bytes) {
        Ok(needs) => assert!(matches!(needs, Needs::Glibc(2, 14..)), "{needs:?}"),
        Err(refused) => assert!(refused.contains("needs `GLIBC_2."), "{refused}"),
    }
}
