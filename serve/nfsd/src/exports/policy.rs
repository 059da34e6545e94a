//! Access rules of an export, and the identity of a caller.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ivers_nfs4::rpc::{AUTH_NONE, AUTH_SYS, AuthSys};
use ivers_vfs::Cred;

use super::config::{ExportConfig, Flavor, Mode, NOBODY, Network, Secured, Settings};
use crate::net::tls::TlsPeer;
use crate::rpc::{Caller, Credential};

/// The properties of a caller that access depends on.
#[derive(Debug, Clone, Copy)]
pub struct CallerInfo<'a> {
    /// Client address.
    pub address: IpAddr,
    /// Claimed identity.
    pub credential: &'a Credential,
    /// TLS peer; `None` without TLS.
    pub tls: Option<&'a TlsPeer>,
}

impl<'a> CallerInfo<'a> {
    /// Collects the properties of a caller.
    pub fn new(caller: &'a Caller) -> Self {
        let connection = &caller.connection;
        Self { address: connection.peer().ip(), credential: &caller.credential, tls: connection.tls() }
    }
}

/// Granted access.
#[derive(Debug, Clone)]
pub struct Access {
    /// Credentials for the VFS.
    pub cred: Cred,
    /// Changes are not permitted.
    pub read_only: bool,
    /// Namespace and attribute changes are answered before they are durable (`async`).
    pub deferred: bool,
}

/// The reason why access is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The address has no access. The export does not exist for it: NFS4ERR_NOENT by name, NFS4ERR_ACCESS by
    /// handle.
    Address,
    /// Access requires another flavor or TLS (NFS4ERR_WRONGSEC).
    Security,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    clients: Vec<Network>,
    read_only: bool,
    root_squash: bool,
    all_squash: bool,
    anonuid: u32,
    anongid: u32,
    deferred: bool,
    sec: BTreeSet<Flavor>,
    tls: Secured,
    names: Option<Vec<String>>,
}

impl Rule {
    fn new(base: &Settings, over: &Settings) -> Self {
        // `tls` and `names` of a rule belong together. Otherwise a rule without certificates would check
        // names.
        let tls = if over.tls.is_some() { over } else { base };
        Self {
            clients: over.clients.clone().or_else(|| base.clients.clone()).unwrap_or_else(loopback),
            read_only: over.access.or(base.access) == Some(Mode::Ro),
            root_squash: over.root_squash.or(base.root_squash).unwrap_or(true),
            all_squash: over.all_squash.or(base.all_squash).unwrap_or(false),
            anonuid: over.anonuid.or(base.anonuid).unwrap_or(NOBODY),
            anongid: over.anongid.or(base.anongid).unwrap_or(NOBODY),
            deferred: over.deferred.or(base.deferred).unwrap_or(false),
            sec: over.sec.clone().or_else(|| base.sec.clone()).unwrap_or_else(|| [Flavor::Sys].into()),
            tls: tls.tls.unwrap_or(Secured::Optional),
            names: tls.names.clone(),
        }
    }

    fn is_secured(&self, tls: Option<&TlsPeer>) -> bool {
        let secured = match self.tls {
            Secured::Optional => true,
            Secured::Required => tls.is_some(),
            Secured::Certificate => tls.is_some_and(TlsPeer::authenticated),
        };
        let named = |names: &[String]| {
            tls.is_some_and(|peer| peer.names.iter().any(|name| names.iter().any(|want| matches(want, name))))
        };
        secured && self.names.as_deref().is_none_or(named)
    }

    fn cred(&self, sys: &AuthSys) -> Cred {
        let AuthSys { uid, gid, gids, .. } = sys;
        if self.all_squash {
            return self.anonymous();
        }
        // The ID -1 means "unchanged" in system calls, so it is not a valid identity.
        let squash = |id: u32, anonymous: u32| {
            if id == u32::MAX || (id == 0 && self.root_squash) { anonymous } else { id }
        };
        Cred {
            uid: squash(*uid, self.anonuid),
            gid: squash(*gid, self.anongid),
            groups: gids.0.iter().map(|gid| squash(*gid, self.anongid)).collect(),
            ..Cred::root()
        }
    }

    fn anonymous(&self) -> Cred {
        Cred::user(self.anonuid, self.anongid)
    }
}

fn loopback() -> Vec<Network> {
    ["127.0.0.0/8", "::1"].into_iter().filter_map(|net| net.parse().ok()).collect()
}

/// Compares DNS names without case. `*` matches one label.
fn matches(want: &str, name: &str) -> bool {
    match want.strip_prefix("*.") {
        Some(domain) => name.split_once('.').is_some_and(|(_, rest)| rest.eq_ignore_ascii_case(domain)),
        None => want.eq_ignore_ascii_case(name),
    }
}

/// The rules of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The first rule whose clients include the address applies. The last rule is the export's own.
    rules: Vec<Rule>,
}

impl Policy {
    /// Creates the rules from the configuration.
    pub fn new(config: &ExportConfig) -> Self {
        let base = &config.settings;
        let own = Rule::new(base, &Settings::default());
        Self { rules: config.rules.iter().map(|over| Rule::new(base, over)).chain([own]).collect() }
    }

    fn rule(&self, address: IpAddr) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.clients.iter().any(|net| net.contains(address)))
    }

    /// Returns whether the export exists for an address.
    pub fn is_visible_to(&self, address: IpAddr) -> bool {
        self.rule(address).is_some()
    }

    /// Returns the granted access, or the reason for refusal.
    pub fn admit(&self, caller: CallerInfo<'_>) -> Result<Access, Refusal> {
        let rule = self.rule(caller.address).ok_or(Refusal::Address)?;
        let (flavor, cred) = match caller.credential {
            Credential::None => (Flavor::None, rule.anonymous()),
            Credential::Sys(sys) => (Flavor::Sys, rule.cred(sys)),
        };
        if !rule.sec.contains(&flavor) || !rule.is_secured(caller.tls) {
            return Err(Refusal::Security);
        }
        Ok(Access { cred, read_only: rule.read_only, deferred: rule.deferred })
    }

    /// Returns the flavors that an address may use (SECINFO), best first.
    pub fn flavors(&self, address: IpAddr) -> Vec<u32> {
        let number = |flavor: &Flavor| match flavor {
            Flavor::Sys => AUTH_SYS,
            Flavor::None => AUTH_NONE,
        };
        self.rule(address).map(|rule| rule.sec.iter().rev().map(number).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use ivers_nfs4::xdr::List;

    use super::*;

    fn policy(flag: &str) -> Policy {
        Policy::new(&ExportConfig::from_flag(&format!("image,{flag}")).unwrap())
    }

    fn sys(uid: u32, gid: u32, gids: &[u32]) -> Credential {
        Credential::Sys(AuthSys { stamp: 0, machine: Vec::new(), uid, gid, gids: List(gids.to_vec()) })
    }

    fn who<'a>(address: &str, credential: &'a Credential, tls: Option<&'a TlsPeer>) -> CallerInfo<'a> {
        CallerInfo { address: address.parse().unwrap(), credential, tls }
    }

    fn ids(policy: &Policy, credential: &Credential) -> (u32, u32, Vec<u32>) {
        let Cred { uid, gid, groups, access_checked, .. } =
            policy.admit(who("127.0.0.1", credential, None)).unwrap().cred;
        assert!(!access_checked, "the VFS checks");
        (uid, gid, groups)
    }

    #[test]
    fn root_is_squashed_by_default() {
        let user = sys(1000, 100, &[0, 27, u32::MAX]);
        let root = sys(0, 0, &[0, 4]);
        let default = policy("rw");
        assert_eq!(ids(&default, &user), (1000, 100, vec![NOBODY, 27, NOBODY]));
        assert_eq!(ids(&default, &root), (NOBODY, NOBODY, vec![NOBODY, 4]));
        assert_eq!(ids(&policy("anonuid=7,anongid=8"), &root), (7, 8, vec![8, 4]));
        assert_eq!(ids(&policy("no_root_squash"), &root), (0, 0, vec![0, 4]));
        assert_eq!(ids(&policy("no_root_squash"), &sys(u32::MAX, u32::MAX, &[])), (NOBODY, NOBODY, vec![]));
        assert_eq!(ids(&policy("all_squash"), &user), (NOBODY, NOBODY, vec![]));
        assert_eq!(ids(&policy("no_root_squash,all_squash,anonuid=7"), &root), (7, NOBODY, vec![]));
        // A caller without identity is anonymous, whatever is squashed.
        assert_eq!(ids(&policy("no_root_squash,sec=none;sys"), &Credential::None), (NOBODY, NOBODY, vec![]));
    }

    #[test]
    fn only_listed_clients_have_access() {
        let user = sys(1000, 100, &[]);
        let admits = |policy: &Policy, address: &str| policy.admit(who(address, &user, None)).is_ok();
        let default = policy("ro");
        assert!(["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"].iter().all(|at| admits(&default, at)));
        assert!(!["192.0.2.1", "::2", "::ffff:192.0.2.1"].iter().any(|at| admits(&default, at)));
        let some = policy("clients=192.0.2.0/25;2001:db8::/64;203.0.113.9");
        assert!(
            ["192.0.2.127", "2001:db8::9", "203.0.113.9", "::ffff:192.0.2.1"]
                .iter()
                .all(|at| admits(&some, at))
        );
        assert!(
            !["192.0.2.128", "2001:db8:0:1::", "203.0.113.8", "127.0.0.1"].iter().any(|at| admits(&some, at))
        );
        assert_eq!(some.admit(who("127.0.0.1", &user, None)).unwrap_err(), Refusal::Address);
        assert!(!admits(&policy("clients="), "127.0.0.1"), "the list of clients is empty");
    }

    #[test]
    fn flavors_and_tls_are_required_as_configured() {
        let user = sys(1000, 100, &[]);
        fn refused(policy: &Policy, credential: &Credential, tls: Option<&TlsPeer>) -> Option<Refusal> {
            policy.admit(who("127.0.0.1", credential, tls)).err()
        }
        let security = Some(Refusal::Security);
        assert_eq!(refused(&policy("rw"), &Credential::None, None), security);
        assert_eq!(refused(&policy("sec=none"), &user, None), security);
        let secured = TlsPeer::default();
        let named = |names: &[&str]| TlsPeer {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            certificate: Some(vec![1]),
        };
        let required = policy("tls=required");
        assert_eq!(refused(&required, &user, None), security);
        assert_eq!(refused(&required, &user, Some(&secured)), None);
        let certificate = policy("tls=certificate");
        assert_eq!(refused(&certificate, &user, Some(&secured)), security);
        assert_eq!(refused(&certificate, &user, Some(&named(&[]))), None);
        let names = policy("tls=certificate,names=a.example;*.b.example");
        for (name, so) in [
            ("A.Example", true),
            ("x.b.example", true),
            ("x.y.b.example", false),
            ("b.example", false),
            ("aa.example", false),
        ] {
            assert_eq!(refused(&names, &user, Some(&named(&["z", name]))).is_none(), so, "{name}");
        }
        assert_eq!(refused(&names, &user, Some(&named(&[]))), security);
        assert_eq!(policy("sec=none;sys").flavors("::1".parse().unwrap()), [AUTH_SYS, AUTH_NONE]);
        assert_eq!(policy("sec=none").flavors("192.0.2.1".parse().unwrap()), [0u32; 0]);
    }

    #[test]
    fn the_first_rule_that_includes_the_address_applies() {
        let settings = |flag: &str| ExportConfig::from_flag(&format!("i,{flag}")).unwrap().settings;
        let mut config = ExportConfig::from_flag(
            "i,ro,anonuid=5,async,clients=192.0.2.0/24,tls=certificate,names=a.example",
        )
        .unwrap();
        let optional = Settings { tls: Some(Secured::Optional), ..settings("clients=192.0.2.7,rw") };
        let flag = "clients=192.0.2.0/29;198.51.100.1,no_root_squash,tls=required";
        let required = Settings { deferred: Some(false), ..settings(flag) };
        config.rules = vec![optional, required];
        let policy = Policy::new(&config);
        let root = sys(0, 0, &[]);
        let secured = TlsPeer::default();
        let access = |address, tls| {
            policy.admit(who(address, &root, tls)).map(|it| (it.read_only, it.deferred, it.cred.uid))
        };
        assert_eq!(access("192.0.2.7", None), Ok((false, true, 5)));
        assert_eq!(access("192.0.2.6", Some(&secured)), Ok((true, false, 0)));
        assert_eq!(access("198.51.100.1", Some(&secured)), Ok((true, false, 0)));
        assert_eq!(access("198.51.100.1", None), Err(Refusal::Security));
        assert_eq!(access("192.0.2.8", Some(&secured)), Err(Refusal::Security));
        assert_eq!(access("198.51.100.2", None), Err(Refusal::Address));
    }
}
