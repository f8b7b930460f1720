//! What `/proc` says of a stopped process, parsed as far as a capture needs it (proc(5)).
//!
//! Read from outside: pids and ids in these files are the host's; [`Status`] gives the ids inside, from the `NS*` lines.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A file below `/proc/<pid>`.
pub(crate) fn path(pid: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Threads of a process, as host ids, ascending.
pub(crate) fn threads(pid: i32) -> io::Result<Vec<i32>> {
    numbers_in(&path(pid, "task"))
}

/// Descriptor numbers of a process, ascending.
pub(crate) fn descriptors(pid: i32) -> io::Result<Vec<i32>> {
    numbers_in(&path(pid, "fd"))
}

fn numbers_in(directory: &std::path::Path) -> io::Result<Vec<i32>> {
    let mut numbers: Vec<i32> =
        fs::read_dir(directory)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Children of all threads of a process, zombies too (`CONFIG_PROC_CHILDREN`).
pub(crate) fn children(pid: i32) -> io::Result<Vec<i32>> {
    let mut all = Vec::new();
    for tid in threads(pid)? {
        let text = match fs::read_to_string(path(pid, &format!("task/{tid}/children"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Ok(all)
}

/// Where a magic link points, as raw bytes.
pub(crate) fn link(pid: i32, name: &str) -> io::Result<Vec<u8>> {
    Ok(fs::read_link(path(pid, name))?.into_os_string().into_vec())
}

/// The fields of `/proc/<pid>/stat` behind the name; `field(n)` counts as proc(5) does.
#[derive(Debug)]
pub(crate) struct Stat(Vec<String>);

impl Stat {
    pub(crate) fn read(pid: i32) -> io::Result<Self> {
        let text = String::from_utf8_lossy(&fs::read(path(pid, "stat"))?).into_owned();
        let rest = text.rsplit_once(')').ok_or_else(|| invalid("stat without a name"))?.1;
        Ok(Self(rest.split_whitespace().map(str::to_owned).collect()))
    }

    pub(crate) fn field(&self, number: usize) -> u64 {
        self.0.get(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    }

    pub(crate) fn state(&self) -> char {
        self.0.first().and_then(|text| text.chars().next()).unwrap_or('?')
    }

    /// Controlling terminal's device number, 0 for none.
    pub(crate) fn terminal(&self) -> u64 {
        self.field(7)
    }

    /// Wait status of a zombie.
    pub(crate) fn exit_status(&self) -> i32 {
        self.field(52) as i32
    }
}

/// `/proc/<pid>/status`, line by line.
#[derive(Debug)]
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn read(pid: i32) -> io::Result<Self> {
        Ok(Self(String::from_utf8_lossy(&fs::read(path(pid, "status"))?).into_owned()))
    }

    pub(crate) fn value(&self, key: &str) -> &str {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map_or("", str::trim)
    }

    fn list(&self, key: &str) -> Vec<u64> {
        self.value(key).split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    /// The innermost number of an `NS*` line.
    pub(crate) fn inside(&self, key: &str) -> i32 {
        self.list(key).last().map_or(0, |&number| number as i32)
    }

    pub(crate) fn hex(&self, key: &str) -> u64 {
        u64::from_str_radix(self.value(key), 16).unwrap_or(0)
    }

    pub(crate) fn number(&self, key: &str) -> u64 {
        self.value(key).split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Four ids: real, effective, saved, file system.
    pub(crate) fn ids(&self, key: &str) -> [u32; 4] {
        let list = self.list(key);
        std::array::from_fn(|index| list.get(index).map_or(0, |&id| id as u32))
    }

    pub(crate) fn groups(&self) -> Vec<u32> {
        self.list("Groups").into_iter().map(|id| id as u32).collect()
    }

    pub(crate) fn octal(&self, key: &str) -> u32 {
        u32::from_str_radix(self.value(key), 8).unwrap_or(0o022)
    }
}

/// The name of a task, for people.
pub(crate) fn name(pid: i32) -> String {
    fs::read(path(pid, "comm")).map_or_else(|_| "?".into(), |raw| String::from_utf8_lossy(&raw).trim().to_owned())
}

/// Which host id a user namespace's id 0 is.
pub(crate) fn id_base(pid: i32) -> io::Result<u32> {
    let text = fs::read_to_string(path(pid, "uid_map"))?;
    let mut words = text.split_whitespace();
    match (words.next(), words.next().and_then(|word| word.parse().ok())) {
        (Some("0"), Some(base)) => Ok(base),
        _ => Err(invalid("uid_map does not begin with 0")),
    }
}

/// One mapping as `smaps` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Area {
    pub start: u64,
    pub end: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    pub shared: bool,
    pub offset: u64,
    pub inode: u64,
    pub name: String,
    /// Two-letter flags.
    pub flags: Vec<String>,
    pub protection_key: u64,
}

/// All mappings of a process.
pub(crate) fn areas(pid: i32) -> io::Result<Vec<Area>> {
    let text = String::from_utf8_lossy(&fs::read(path(pid, "smaps"))?).into_owned();
    let mut all: Vec<Area> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("VmFlags:") {
            if let Some(area) = all.last_mut() {
                area.flags = rest.split_whitespace().map(str::to_owned).collect();
            }
        } else if let Some(rest) = line.strip_prefix("ProtectionKey:") {
            if let Some(area) = all.last_mut() {
                area.protection_key = rest.trim().parse().unwrap_or(0);
            }
        } else if line.as_bytes().first().is_some_and(|b| b.is_ascii_digit() || b.is_ascii_lowercase()) {
            all.push(area(line).ok_or_else(|| invalid("a mapping line that cannot be read"))?);
        }
    }
    Ok(all)
}

fn area(line: &str) -> Option<Area> {
    let mut parts = line.splitn(6, ' ');
    let (start, end) = parts.next()?.split_once('-')?;
    let permissions = parts.next()?.as_bytes();
    let offset = parts.next()?;
    parts.next()?;
    let inode = parts.next()?;
    Some(Area {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: permissions.first() == Some(&b'r'),
        writable: permissions.get(1) == Some(&b'w'),
        executable: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        name: parts.next().unwrap_or("").trim().to_owned(),
        flags: Vec::new(),
        protection_key: 0,
    })
}

/// All mappings of a process without their flags, which cost the kernel a walk over all pages.
pub(crate) fn maps(pid: i32) -> io::Result<Vec<Area>> {
    Ok(String::from_utf8_lossy(&fs::read(path(pid, "maps"))?).lines().filter_map(area).collect())
}

/// The vdso's range, if there is one. A program can map a file whose path ends like its name.
pub(crate) fn vdso(pid: i32) -> io::Result<Option<(u64, u64)>> {
    let found = maps(pid)?.into_iter().find(|area| area.name == "[vdso]" && area.inode == 0);
    Ok(found.map(|area| (area.start, area.end)))
}

/// `/proc/<pid>/fdinfo/<fd>` as key and value lines.
pub(crate) fn fd_info(pid: i32, fd: i32) -> io::Result<Vec<(String, String)>> {
    let text = fs::read_to_string(path(pid, &format!("fdinfo/{fd}")))?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_line_with_spaces_in_its_path_is_read_whole() {
        let line = "7f00-8f00 r-xp 00001000 fe:00 1234                       /usr/lib/a b (deleted)";
        let area = area(line).expect("parses");
        assert_eq!((area.start, area.end, area.offset, area.inode), (0x7f00, 0x8f00, 0x1000, 1234));
        assert_eq!(area.name, "/usr/lib/a b (deleted)");
        assert!(area.readable && area.executable && !area.writable && !area.shared);
    }

    #[test]
    fn our_own_status_and_maps_are_read() {
        let pid = std::process::id() as i32;
        assert_eq!(Status::read(pid).expect("status").inside("NSpid"), pid);
        assert!(
            areas(pid)
                .expect("areas")
                .iter()
                .any(|area| area.name == "[stack]" && area.flags.contains(&"gd".to_owned()))
        );
        assert!(vdso(pid).expect("maps").is_some());
    }
}
