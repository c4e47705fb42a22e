package native

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/guest/uplink"
)

// cacheDir holds layers that sandboxes share, below Config.Dir.
const cacheDir = "cache"

// etcAllowed is what of the host's /etc exists inside. It is an allow-list: what is not named here (shadow, ssh
// host keys, package manager credentials, service configuration) is not in the sandbox, and of what is named
// only what everybody may read is copied.
var etcAllowed = []string{
	// The dynamic linker: without its cache programs start slowly or not at all.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	// Certificates to check servers with. Not ssl/private.
	"ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf", "pki/ca-trust/extracted", "pki/tls/certs",
	"pki/tls/cert.pem", "pki/tls/openssl.cnf", "crypto-policies",
	// Where distributions put the choice between several versions of a program, and interpreters their defaults.
	"alternatives", "python3", "python3.11", "python3.12", "python3.13", "perl", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk",
	"maven/m2.conf", "maven/logging", "maven/toolchains.xml", "ghc", "ghostscript", "ImageMagick-6", "ImageMagick-7", "fonts",
	// Names of numbers: services, protocols, media types, time zones, terminals, locales.
	"nsswitch.conf", "services", "protocols", "ethertypes", "rpc", "networks", "host.conf", "gai.conf", "mime.types", "magic",
	"magic.mime", "localtime", "timezone", "terminfo", "locale.alias", "locale.conf", "default/locale", "xattr.conf",
	// Shells, editors and pagers. Not profile.d: it runs what packages put there.
	"profile", "bash.bashrc", "bashrc", "inputrc", "shells", "skel", "vim", "nanorc", "manpath.config", "lesskey",
	// What starts programs that are scripts.
	"chromium.d", "chromium", "chromium-browser", "opt/chrome", "firefox", "firefox-esr", "libreoffice", "R", "octave.conf", "gtk-3.0", "ruby",
	// What this distribution is called.
	"os-release", "debian_version", "lsb-release", "redhat-release", "alpine-release", "issue",
}

// skeletonDirs exist in every sandbox whether or not the host has them.
var skeletonDirs = []string{"dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "sys", "usr", "var",
	"var/cache",
	"var/lib", "var/log", "var/opt"}

// topLevel are the directories of programs and libraries. Where the host has a link (merged /usr) so has the
// sandbox; where it has a directory, that is shown.
var topLevel = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// skeleton is the lower layer of sandboxes that use the host's programs: a copy of what etcAllowed names,
// generated account files, and mount points. It is rebuilt under another name when the host's files change.
type skeleton struct {
	mu      sync.Mutex
	layer   string // its directory
	binds   []boot.Bind
	checked time.Time
}

// entry is one file, link or directory of a layer.
type entry struct {
	name  string // relative
	mode  fs.FileMode
	data  string // content, or the link's target
	owner int    // uid inside, where sandboxes have ranges; else everything is ours
	group int    // gid, likewise
}

// get returns the layer, looking at the host again when the last look is old.
func (s *skeleton) get(p *Provider) (layer string, binds []boot.Bind, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layer != "" && time.Since(s.checked) < skeletonMaxAge {
		return s.layer, s.binds, nil
	}
	entries, binds, err := p.hostEntries()
	if err != nil {
		return "", nil, fmt.Errorf("collecting the host's files: %w", err)
	}
	name := "host-" + digest(entries)
	layer = filepath.Join(p.dir, cacheDir, name)
	if err := buildLayer(layer, func(root *os.Root) error { return writeEntries(root, entries) }); err != nil {
		return "", nil, fmt.Errorf("building the host layer: %w", err)
	}
	s.layer, s.binds, s.checked = layer, binds, time.Now()
	p.prune(layer)
	return layer, binds, nil
}

// hostEntries lists the layer's content and the host directories to show, in a stable order.
func (p *Provider) hostEntries() ([]entry, []boot.Bind, error) {
	var entries []entry
	binds := []boot.Bind{{Source: "/usr", Target: "/usr"}}
	for _, d := range skeletonDirs {
		entries = append(entries, entry{name: d, mode: fs.ModeDir | 0o755})
	}
	for _, name := range topLevel {
		target, err := os.Readlink("/" + name)
		if err == nil {
			entries = append(entries, entry{name: name, mode: fs.ModeSymlink | 0o777, data: target})
			continue
		}
		if fi, err := os.Lstat("/" + name); err == nil && fi.IsDir() {
			entries = append(entries, entry{name: name, mode: fs.ModeDir | 0o755})
			binds = append(binds, boot.Bind{Source: "/" + name, Target: "/" + name})
		}
	}
	for _, dir := range p.readOnly {
		fi, err := os.Stat(dir)
		if err != nil || !filepath.IsAbs(dir) {
			return nil, nil, fmt.Errorf("read-only path %q is no absolute path of this host", dir)
		}
		if dir = filepath.Clean(dir); dir == "/" || !fi.IsDir() {
			return nil, nil, fmt.Errorf("read-only path %q is not a directory below the root", dir)
		}
		binds = append(binds, boot.Bind{Source: dir, Target: dir})
	}
	for _, name := range etcAllowed {
		e, err := readEtc("/etc", name)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, e...)
	}
	entries = append(entries, accountEntries()...)
	entries = append(entries, p.toolEntries(tool{})...)
	entries = append(entries, p.trustEntries(nil, tool{})...)
	slices.SortStableFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return slices.CompactFunc(entries, func(a, b entry) bool { return a.name == b.name }), binds, nil
}

// accountEntries are the files that say who and where we are. They come from us, not from the host.
func accountEntries() []entry {
	return append(placeEntries(), etcFile("passwd", hostPasswd),
		etcFile("group", "root:x:0:\ntty:x:5:\nusers:x:100:\n"+toolGroup+"nogroup:x:65534:\n"))
}

// hostPasswd are the accounts of a sandbox that shows the host's programs.
const hostPasswd = "root:x:0:0:root:/root:/bin/bash\n" + toolPasswd +
	"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"

// settingEntries are files that environment names. They are ours, beside those of the root.
func settingEntries() []entry {
	var git strings.Builder
	git.WriteString("[user]\n\tname = Outboard agent\n\temail = agent@outboard.invalid\n")
	for _, host := range []string{"github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "git.sr.ht", "gitea.com",
		"salsa.debian.org", "gitlab.gnome.org",
		"gitlab.freedesktop.org", "invent.kde.org"} {
		fmt.Fprintf(&git, "[url \"https://%s/\"]\n", host)
		for _, form := range []string{"git@%s:", "ssh://git@%s/", "ssh://git@%s:22/", "git+ssh://git@%s/", "ssh://%s/",
			"git://%s/"} {
			fmt.Fprintf(&git, "\tinsteadOf = "+form+"\n", host)
		}
	}
	git.WriteString("[include]\n\tpath = /etc/gitconfig\n") // last: what the root says holds
	return []entry{
		{name: "etc/outboard", mode: fs.ModeDir | 0o755},
		etcFile("outboard/gitconfig", git.String()),
		etcFile("outboard/npmrc", "prefix="+toolHome+"/.local\n"),
		etcFile("outboard/gemrc",
			"install: --bindir "+toolHome+"/.local/bin\nupdate: --bindir "+toolHome+"/.local/bin\n"),
	}
}

// toolEntries are the tool's directories. They are in the layer, with the tool as owner, because making them in
// each sandbox's own layer is the dearest part of a start; the guest makes what is not there or not the tool's.
func (p *Provider) toolEntries(t tool) []entry {
	entries := settingEntries()
	for _, d := range toolDirs {
		name := strings.TrimPrefix(d.Path, "/")
		for i, c := range name {
			if c == '/' {
				entries = append(entries, entry{name: name[:i], mode: fs.ModeDir | 0o755})
			}
		}
		e := entry{name: name, mode: fs.ModeDir | fs.FileMode(d.Mode).Perm()}
		if d.Mode&unix.S_ISVTX != 0 {
			e.mode |= fs.ModeSticky
		}
		if d.Tool && !p.rootless {
			e.owner, e.group = t.uid(), t.gid()
		}
		entries = append(entries, e)
	}
	return entries
}

// firefoxPolicy has Firefox trust the gateway. Without a network the file is not there, which Firefox passes over.
const firefoxPolicy = `{"policies": {"Certificates": {"Install": ["` + uplink.Certificate + `"]}}}` + "\n"

// trustEntries have programs that trust no file find the gateway's certificate: links to the databases of NSS,
// and a policy. What a root of layers has there already stays. Without a network the links lead to empty
// directories, which are not saved either.
func (p *Provider) trustEntries(layers []string, t tool) []entry {
	var out []entry
	dir := func(name string, mode fs.FileMode, uid, gid int) {
		e := entry{name: name, mode: fs.ModeDir | mode}
		if !p.rootless {
			e.owner, e.group = uid, gid
		}
		out = append(out, e)
	}
	trust := uplink.TrustDir[1:]
	dir(path.Dir(trust), 0o755, 0, 0)
	dir(trust, 0o755, 0, 0)
	dir(uplink.NSSDir[1:], 0o700, t.uid(), t.gid())
	dir(uplink.NSSRootDir[1:], 0o700, 0, 0)
	link := func(home, to string, uid, gid int) {
		if !haveEntry(layers, home+"/"+path.Dir(uplink.NSSLink)) {
			dir(home+"/"+path.Dir(uplink.NSSLink), 0o755, uid, gid)
			out = append(out, entry{name: home + "/" + uplink.NSSLink, mode: fs.ModeSymlink | 0o777, data: to})
		}
	}
	link(toolHome[1:], uplink.NSSDir, t.uid(), t.gid())
	const rootHome = "root"
	if mode, uid, gid, ok := dirOf(layers, rootHome); ok { // over which a layer's directory would lie with its own
		dir(rootHome, mode, uid, gid)
		link(rootHome, uplink.NSSRootDir, 0, 0)
	}
	const policy = "etc/firefox/policies/policies.json"
	if !haveEntry(layers, policy) {
		dir("etc/firefox", 0o755, 0, 0)
		dir("etc/firefox/policies", 0o755, 0, 0)
		out = append(out, entry{name: policy, mode: 0o644, data: firefoxPolicy})
	}
	return out
}

// haveEntry reports whether one of the layers has something of that name.
func haveEntry(layers []string, name string) bool {
	for _, dir := range layers {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return true // nothing is laid over what cannot be seen
		}
		_, err = root.Lstat(name)
		root.Close()
		if !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// dirOf returns the mode and owner that a directory has in the highest of the layers that has it; ok is false
// when that has something else.
func dirOf(layers []string, name string) (mode fs.FileMode, uid, gid int, ok bool) {
	for _, dir := range layers {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || !fi.IsDir() {
			return 0, 0, 0, false
		}
		st := fi.Sys().(*syscall.Stat_t)
		return fi.Mode().Perm(), int(st.Uid), int(st.Gid), true
	}
	return 0o755, 0, 0, true
}

const (
	toolAccount = "user"

	toolPasswd = "user:x:1000:1000:user:" + toolHome + ":/bin/bash\n"
	toolGroup  = "user:x:1000:\n"
)

func etcFile(name, data string) entry { return entry{name: "etc/" + name, mode: 0o644, data: data} }

// placeEntries name this machine and nothing else: there is no network beyond it.
func placeEntries() []entry {
	return []entry{
		etcFile("hosts", "127.0.0.1\tlocalhost "+hostname+"\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
		etcFile("hostname", hostname+"\n"),
		etcFile("resolv.conf", ""),
		{name: "etc/mtab", mode: fs.ModeSymlink | 0o777, data: "/proc/self/mounts"},
	}
}

// readEtc returns a file or tree below dir with the directories above it. What is missing, or not for everybody,
// is left out.
func readEtc(dir, name string) ([]entry, error) {
	var out []entry
	for i, c := range name {
		if c == '/' {
			out = append(out, entry{name: path.Join("etc", name[:i]), mode: fs.ModeDir | 0o755})
		}
	}
	err := filepath.WalkDir(filepath.Join(dir, name), func(file string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		e, err := readEntry(file, path.Join("etc", filepath.ToSlash(rel)))
		if e != nil {
			out = append(out, *e)
		} else if d.IsDir() {
			return fs.SkipDir
		}
		return err
	})
	return out, err
}

// readEntry returns nil for what is not copied.
func readEntry(file, name string) (*entry, error) {
	fi, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		return &entry{name: name, mode: fs.ModeSymlink | 0o777, data: target}, err
	case fi.Mode().Perm()&0o004 == 0:
		return nil, nil
	case fi.IsDir():
		return &entry{name: name, mode: fs.ModeDir | 0o755}, nil
	case !fi.Mode().IsRegular() || fi.Size() > maxEtcFile:
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEtcFile))
	return &entry{name: name, mode: fi.Mode().Perm() & 0o755, data: string(data)}, err
}

func digest(entries []entry) string {
	h := sha256.New()
	for _, e := range entries {
		fmt.Fprintf(h, "%q %o %d:%d %d\n%s", e.name, e.mode, e.owner, e.group, len(e.data), e.data)
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func writeEntries(root *os.Root, entries []entry) error {
	for _, e := range entries {
		var err error
		switch {
		case e.mode.IsDir():
			if err = root.MkdirAll(e.name, 0o755); err == nil {
				err = root.Chmod(e.name, e.mode&(fs.ModePerm|fs.ModeSticky))
			}
		case e.mode&fs.ModeSymlink != 0:
			err = root.Symlink(e.data, e.name)
		default:
			err = root.WriteFile(e.name, []byte(e.data), e.mode.Perm())
		}
		if err == nil && e.owner != 0 {
			err = root.Lchown(e.name, e.owner, e.group)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", e.name, err)
		}
	}
	return nil
}

// buildLayer fills a directory under a temporary name and renames it, so that a layer is whole or absent. When
// another process was faster, its layer is as good.
func buildLayer(layer string, fill func(*os.Root) error) error {
	if _, err := os.Lstat(layer); err == nil {
		return nil
	}
	tmp, err := os.MkdirTemp(filepath.Dir(layer), ".new-")
	if err != nil {
		return err
	}
	err = os.Chmod(tmp, 0o755)
	if err == nil {
		var root *os.Root
		if root, err = os.OpenRoot(tmp); err == nil {
			err = errors.Join(fill(root), root.Close())
		}
	}
	if err == nil {
		err = os.Rename(tmp, layer)
	}
	if err == nil {
		return nil
	}
	rmErr := removeTree(tmp)
	if _, statErr := os.Lstat(layer); statErr == nil {
		return rmErr
	}
	if outboard.DiskFull(err) { // said here: there is room again, and the error names a file of the layer's
		err = outboard.FullDisk("preparing its files", err)
	}
	return errors.Join(err, rmErr)
}

// prune removes host layers that no sandbox uses and no process has looked at for a while, and what a crash left
// of building one.
func (p *Provider) prune(current string) {
	now := time.Now()
	_ = os.Chtimes(current, now, now) // in use: other processes must not prune it
	used := map[string]bool{current: true}
	boxes, err := p.places()
	if err != nil {
		return // the next look prunes
	}
	for _, b := range boxes {
		if s, err := b.load(); err == nil {
			for _, l := range s.Lower {
				used[l] = true
			}
		}
	}
	layers, err := os.ReadDir(filepath.Join(p.dir, cacheDir))
	if err != nil {
		return
	}
	for _, d := range layers {
		path := filepath.Join(p.dir, cacheDir, d.Name())
		fi, err := d.Info()
		if err != nil || used[path] || now.Sub(fi.ModTime()) < layerMaxIdle ||
			strings.HasPrefix(d.Name(), archivePrefix) {
			continue
		}
		if err := removeTree(path); err != nil {
			p.log.Warn("old layer not removed", "layer", path, "err", err)
		}
	}
}
