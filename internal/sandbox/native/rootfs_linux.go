package native

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/guest/boot"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// rootfs is what a sandbox's root is made from.
type rootfs struct {
	lower []string // top first
	binds []boot.Bind
	path  string   // PATH for what is inside, or "" for the guest's default
	cache string   // the directory below which lower layers are ours
	given []string // Spec.Layers, which must stay as well
	tool  tool     // who tools run as
}

// cached returns the layers that must stay while the sandbox lives.
func (r *rootfs) cached() []string {
	out := slices.Clone(r.given)
	for _, l := range r.lower {
		if filepath.Dir(l) == r.cache {
			out = append(out, l)
		}
	}
	return out
}

// rootfs resolves Spec.Rootfs, Spec.Layers and Spec.User.
func (p *Provider) rootfs(name string, layers []string, user string) (*rootfs, error) {
	if p.rootless {
		user = "" // there is one identity
	}
	if len(layers) == 0 && name != sandbox.Bare {
		return p.rootfsOf(name, user)
	}
	if err := checkLayers(layers); err != nil {
		return nil, err
	}
	r := &rootfs{cache: filepath.Join(p.dir, cacheDir), given: layers}
	switch name {
	case "", "host":
		below, err := p.rootfsOf(name, user)
		if err != nil {
			return nil, err
		}
		r.lower, r.binds, r.path, r.tool = append(slices.Clone(layers),
			below.lower...), below.binds, below.path, below.tool
	case sandbox.Bare:
		accounts, t, err := p.accountLayer(layers, user)
		if err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "root file system of layers: %w", err)
		}
		r.tool = t
		r.lower = append([]string{accounts}, layers...)
	default:
		return nil, outboard.Errorf(outboard.Invalid, "layers cannot lie over the root file system %q", name)
	}
	return r, nil
}

// maxGiven bounds Spec.Layers: the guest takes boot.MaxTrees mounts, some of which are the provider's own.
const maxGiven = boot.MaxTrees - 40

func checkLayers(layers []string) error {
	if n := len(layers); n == 0 || n > maxGiven {
		return outboard.Errorf(outboard.Invalid, "a root file system of %d layers: it must have 1 to %d", n, maxGiven)
	}
	for _, l := range layers {
		if fi, err := os.Lstat(l); err != nil || !fi.IsDir() || !filepath.IsAbs(l) {
			return outboard.Errorf(outboard.Unavailable, "the layer %s of the root file system is not here", l)
		}
	}
	return nil
}

// InUse implements sandbox.Stacked.
func (p *Provider) InUse() (map[string]bool, error) {
	boxes, err := p.places()
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	used := map[string]bool{}
	for _, b := range boxes {
		s, err := b.load()
		if err != nil {
			continue // it was removed meanwhile, or nothing was started in it
		}
		for _, l := range s.Lower {
			used[l] = true
		}
	}
	return used, nil
}

// rootfsOf resolves Spec.Rootfs and Spec.User.
func (p *Provider) rootfsOf(name, user string) (_ *rootfs, err error) {
	r := &rootfs{cache: filepath.Join(p.dir, cacheDir)}
	if name == "" || name == "host" {
		layer, binds, err := p.skeleton.get(p)
		if err != nil {
			return nil, outboard.Errorf(outboard.Unavailable, "%w", err)
		}
		r.lower, r.binds, r.path = []string{layer}, binds, hostPath(os.Getenv("PATH"), binds)
		if r.tool, err = toolOf(user, hostPasswd); err != nil {
			return nil, outboard.Errorf(outboard.Invalid, "%w", err)
		}
		return r, nil
	}
	invalid := func(format string, args ...any) (*rootfs, error) {
		return nil, outboard.Errorf(outboard.Invalid, "root file system %q: "+format, append([]any{name}, args...)...)
	}
	if !filepath.IsAbs(name) {
		return invalid("neither \"host\" nor an absolute path of a directory or a .tar file")
	}
	// Resolved once, so that what is checked is what is used.
	dir, err := filepath.EvalSymlinks(name)
	if err != nil {
		return invalid("%w", err)
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return invalid("%w", err)
	}
	switch {
	case fi.Mode().IsRegular():
		if dir, err = p.archives.unpack(p, dir); err != nil {
			return invalid("unpacking: %w", err)
		}
	case !fi.IsDir():
		return invalid("neither a directory nor a file")
	case within(p.dir, dir) || within(dir, p.dir):
		return invalid("it contains, or is inside, the directory of the sandboxes")
	}
	accounts, t, err := p.accountLayer([]string{dir}, user)
	if err != nil {
		return invalid("%w", err)
	}
	r.lower, r.tool = []string{accounts, dir}, t
	return r, nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// accountLayer returns a layer that goes over a foreign root (its layers, top first): its accounts with the
// sandbox's own user added, the tool's directories, and the names of the place; and who the tool is that user
// names.
func (p *Provider) accountLayer(layers []string, user string) (string, tool, error) {
	if err := mountable(layers); err != nil {
		return "", tool{}, err
	}
	passwd, err := accountsOf(layers, "passwd", toolPasswd)
	if err != nil {
		return "", tool{}, err
	}
	group, err := accountsOf(layers, "group", toolGroup)
	if err != nil {
		return "", tool{}, err
	}
	t, err := toolOf(user, passwd)
	if err != nil {
		return "", t, err
	}
	entries := append([]entry{{name: "etc", mode: fs.ModeDir | 0o755}, etcFile("passwd", passwd),
		etcFile("group", group)}, placeEntries()...)
	entries = append(entries, p.toolEntries(t)...)
	entries = append(entries, p.trustEntries(layers, t)...)
	layer := filepath.Join(p.dir, cacheDir, "accounts-"+digest(entries))
	return layer, t, buildLayer(layer, func(root *os.Root) error { return writeEntries(root, entries) })
}

// mountable refuses a foreign root that has something else where a sandbox mounts file systems of its own:
// nothing of the host's can mend it.
func mountable(layers []string) error {
	for _, name := range []string{"proc", "dev", "sys", "tmp"} {
		for _, dir := range layers {
			fi, err := os.Lstat(filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if !fi.IsDir() && !isWhiteout(fi) {
				return fmt.Errorf("its /%s is not a directory", name)
			}
			break
		}
	}
	return nil
}

// accountsOf returns a file of /etc as an overlay of the layers shows it, with the tool's line added where its
// id has none.
func accountsOf(layers []string, name, line string) (string, error) {
	for _, dir := range layers {
		text, last, err := accountsIn(dir, name, line)
		if err != nil || text != "" {
			return text, err
		}
		if last {
			break
		}
	}
	return line, nil
}

// accountsIn looks into one layer. last says that no layer below shows.
func accountsIn(dir, name, line string) (text string, last bool, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", false, err
	}
	defer root.Close()
	for _, path := range []string{"etc", "etc/" + name} {
		fi, err := root.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", path != "etc" && isOpaque(filepath.Join(dir, "etc")), nil
		case err != nil:
			return "", false, err
		case isWhiteout(fi):
			return "", true, nil
		case path == "etc" && !fi.IsDir():
			return "", false, errors.New("its /etc is not a directory")
		}
	}
	text, err = readAccounts(root, "etc/"+name, line)
	return text, true, err
}

// isWhiteout reports whether a file of a layer says that the layers below have none of its name.
func isWhiteout(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

// isOpaque reports whether a directory of a layer hides what the layers below have in it.
func isOpaque(dir string) bool {
	b := make([]byte, 4)
	n, err := unix.Lgetxattr(dir, "user.overlay.opaque", b)
	return err == nil && string(b[:n]) == "y"
}

// readAccounts returns a file of colon-separated lines with the tool's line added where its id has none.
func readAccounts(root *os.Root, name, line string) (string, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return line, nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return "", fmt.Errorf("its /%s is not a regular file", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAccounts))
	if err != nil {
		return "", err
	}
	text := string(data)
	for l := range strings.Lines(text) {
		if fields := strings.Split(strings.TrimSpace(l), ":"); len(fields) > 2 && fields[2] == strconv.Itoa(toolUID) {
			return text, nil
		}
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + line, nil
}

// hostPath is the search path for programs inside a sandbox that shows the host's: the usual places, then
// whatever of the server's own path is shown as well, so that a compiler found outside is found inside.
func hostPath(own string, binds []boot.Bind) string {
	dirs := []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"}
	const golang = "/usr/local/go/bin" // where Go's own instructions put it, often only in interactive shells' paths
	for _, d := range append(filepath.SplitList(own), golang) {
		shown := slices.ContainsFunc(binds, func(b boot.Bind) bool { return filepath.IsAbs(d) && within(d, b.Source) })
		if _, err := os.Stat(d); err == nil && shown && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, ":")
}

// ownPrograms are where people's package managers put programs. They come last in PATH: what is there cannot
// take the place of the system's.
var ownPrograms = []string{".local/bin", "go/bin", ".cargo/bin", ".local/share/pnpm", ".bun/bin", ".deno/bin",
	".dotnet/tools"}

// environment is that of the programs inside: how tools are installed into the home directory and found there,
// and what spec says. npm is told by a file, because version managers of node refuse to work with the variable.
func environment(spec sandbox.Spec, path string) map[string]string {
	env := map[string]string{
		"GIT_CONFIG_SYSTEM": "/etc/outboard/gitconfig", "npm_config_globalconfig": "/etc/outboard/npmrc", "GEMRC": "/etc/outboard/gemrc",
		"PIP_BREAK_SYSTEM_PACKAGES": "1", "PNPM_HOME": toolHome + "/.local/share/pnpm",
	}
	maps.Copy(env, searchFirst(withPath(spec.Env, path), spec.Path))
	if env["PATH"] == "" {
		env["PATH"] = usualPath
	}
	for _, dir := range ownPrograms {
		env["PATH"] += ":" + toolHome + "/" + dir
	}
	return env
}

// withPath adds PATH where the environment has none.
func withPath(env map[string]string, path string) map[string]string {
	if _, ok := env["PATH"]; ok || path == "" {
		return env
	}
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	env["PATH"] = path
	return env
}

// usualPath is the search path where nobody says one.
const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// searchFirst puts directories before those of PATH.
func searchFirst(env map[string]string, dirs string) map[string]string {
	if dirs == "" {
		return env
	}
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	rest := env["PATH"]
	if rest == "" {
		rest = usualPath
	}
	env["PATH"] = dirs + ":" + rest
	return env
}
