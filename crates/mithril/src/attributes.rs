//! What a file has of the one that it is made from: who may read it, and when it was changed.

use std::fs::{File, Metadata};

/// Mode and time of a new file.
#[derive(Debug, Clone, Default)]
pub struct Attributes(Rule);

#[derive(Debug, Clone, Default)]
enum Rule {
    /// What the umask leaves.
    #[default]
    New,
    /// What another file has.
    Same(Metadata),
    /// What the umask leaves of what another file allows.
    NoWider(u32),
}

impl Attributes {
    /// Mode, time of change and, where the system allows it, owner of another file, as compressors keep them. Until the
    /// file is complete, only its owner can read it.
    pub fn same_as(other: &Metadata) -> Self {
        Self(Rule::Same(other.clone()))
    }

    /// Readable by those only who may read the other file. For files that hold a part of it, or another form.
    pub fn no_wider_than(other: &Metadata) -> Self {
        Self::no_wider_than_mode(mode(other))
    }

    /// As [`Attributes::no_wider_than`], of a file that has this mode.
    pub(crate) fn no_wider_than_mode(mode: u32) -> Self {
        Self(Rule::NoWider(mode))
    }

    /// The mode that a file is made with, before the umask.
    #[cfg(unix)]
    pub(crate) fn creation_mode(&self) -> u32 {
        match &self.0 {
            Rule::New => 0o666,
            Rule::Same(_) => 0o600,
            Rule::NoWider(mode) => mode & 0o666 | 0o600,
        }
    }

    /// Gives a complete file what it has of the other one. Some file systems have no modes or owners: then the file
    /// stays as narrow as it is.
    pub(crate) fn apply(&self, file: &File) {
        let Rule::Same(other) = &self.0 else { return };
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
            // Only root may give files away. Before the mode, so that no other owner or group ever has more.
            let _ = fchown(file, Some(other.uid()), None);
            let _ = fchown(file, None, Some(other.gid()));
            let mut mode = other.mode() & 0o777;
            if file.metadata().map_or(true, |now| now.gid() != other.gid()) {
                // Another group than the one that was meant may do what everybody may.
                mode &= 0o707 | (mode & 0o007) << 3;
            }
            let _ = file.set_permissions(PermissionsExt::from_mode(mode));
        }
        if let Ok(modified) = other.modified() {
            let _ = file.set_modified(modified);
        }
    }
}

#[cfg(unix)]
fn mode(file: &Metadata) -> u32 {
    std::os::unix::fs::MetadataExt::mode(file)
}

#[cfg(not(unix))]
fn mode(_: &Metadata) -> u32 {
    0o666
}
