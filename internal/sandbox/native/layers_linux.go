package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// The saved directories of a sandbox (workDirs) are subtrees of an overlay, which the host mounts and attaches
// to the sandbox, so that it can be swapped under a running sandbox: its writable layer becomes a read-only one,
// and an empty one goes over it. It is one of their own, but for the first one of most sandboxes, which is the
// root's, too (see rootDir). On the disk:
//
//	layers/<name>/fs          a layer: the saved directories as they are named inside, owned by the ids used inside
//	layers/<name>/stack.json  what lies below it
//	checkpoints/<id>          a symbolic link to the name of the checkpoint's top layer
//	<sandbox>/<n>/up,wk       the writable layer in use and its overlay's own directory
//	<sandbox>/<n>/stack.json  what lies below that
//	<sandbox>/root            <1> of a root that the saved directories have left, see rootDir
//
// The writable layer becomes layer <sandbox>.<n>, which is not made before the next overlay is, of which it is a
// part: most sandboxes are never saved. A layer is garbage when neither a sandbox nor a checkpoint is above it.
// Files on the disk have the ids used inside, and every mount of them maps those into the range of its sandbox:
// the layers of one sandbox serve any other.
const (
	layersDir      = "layers"
	checkpointsDir = "checkpoints"
	pushingSuffix  = ".pushing" // of <n> while the mounts are swapped
	nextSuffix     = ".next"    // of <n> until its overlay is attached
	condemned      = ".gone-"   // before the names of layers that Sweep removes
	copyMark       = "c"        // in the names of layers that were copied
)

// workDirs are the saved directories.
var workDirs = []string{sandbox.Workspace, sandbox.Outputs, toolHome}

// stack is what lies below a layer.
type stack struct {
	BootID string   `json:"boot_id"` // layers of another boot may be torn: nothing was synced
	Root   []string `json:"root"`    // the layers of the root file system, top first
	Below  []string `json:"below"`   // names of layers, top first

	Instead []string `json:"instead,omitempty"` // of a flattened layer: what it stands for
}

func (p *Provider) layer(name string) string { return filepath.Join(p.dir, layersDir, name) }

const stackFile = "stack.json"

func (p *Provider) loadStack(name string) (*stack, error) { return readStack(p.layer(name)) }

// stack returns what lies below writable layer n.
func (b place) stack(n int) (*stack, error) { return readStack(b.path(strconv.Itoa(n))) }

func readStack(dir string) (*stack, error) {
	data, err := readRaw(filepath.Join(dir, stackFile))
	if err != nil {
		return nil, fmt.Errorf("reading a layer: %w", err)
	}
	s := new(stack)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("reading a layer: %w", err)
	}
	return s, nil
}

// newLayer makes an empty layer over s.
func (p *Provider) newLayer(name string, s *stack) error {
	dir := p.layer(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "fs"), 0o755); err != nil {
		return err
	}
	return writeStack(dir, s)
}

// layerToBe makes the empty layer over s that a writable one will become, if it is not there yet, or was half
// made by who was killed.
func (p *Provider) layerToBe(name string, s *stack) error {
	err := p.newLayer(name, s)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	files := filepath.Join(p.layer(name), "fs")
	if err := os.Mkdir(files, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !isEmpty(files) { // somebody's files, which are nowhere else
		return fmt.Errorf("layer %s has files already", name)
	}
	return writeStack(p.layer(name), s)
}

func writeStack(dir string, s *stack) error {
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encoding a layer: %w", err)
	}
	return writeRaw(filepath.Join(dir, stackFile), unix.O_CREAT|unix.O_TRUNC, data)
}

// checkpointLayer returns the name of a checkpoint's top layer, and its stack. NotFound unless all of it is
// here, from this boot.
func (p *Provider) checkpointLayer(id outboard.CheckpointID) (string, *stack, error) {
	missing := func(err error) (string, *stack, error) {
		return "", nil, outboard.Errorf(outboard.NotFound, "checkpoint %s has no layers on this host: %w", id, err)
	}
	name, err := p.namedLayer(id)
	if err != nil {
		return missing(err)
	}
	s, err := p.loadStack(name)
	if err != nil {
		return missing(err)
	}
	if s.BootID != p.boot {
		return missing(errors.New("the host was restarted since"))
	}
	for _, l := range s.Below {
		if _, err := os.Lstat(p.layer(l)); err != nil {
			return missing(err)
		}
	}
	return name, s, nil
}

// namedLayer returns the layer on top of a checkpoint, which may not be usable any more.
func (p *Provider) namedLayer(id outboard.CheckpointID) (string, error) {
	if !outboard.ValidID(outboard.PrefixCheckpoint, string(id)) {
		return "", errors.New("not a checkpoint id")
	}
	return os.Readlink(filepath.Join(p.dir, checkpointsDir, string(id)))
}

// Keeps implements sandbox.Layers.
func (p *Provider) Keeps(id outboard.CheckpointID) bool {
	_, _, err := p.checkpointLayer(id)
	return err == nil
}

// Above implements sandbox.Layers.
func (p *Provider) Above(id, base outboard.CheckpointID) bool {
	_, err := p.between(id, base)
	return err == nil
}

// between returns the layers of id that are not of base, top first.
func (p *Provider) between(id, base outboard.CheckpointID) ([]string, error) {
	top, s, err := p.checkpointLayer(id)
	if err != nil {
		return nil, err
	}
	all := append([]string{top}, s.Below...)
	if base == "" {
		return all, nil
	}
	bottom, _, err := p.checkpointLayer(base)
	if err != nil {
		return nil, err
	}
	i := slices.Index(all, bottom)
	if i < 0 {
		return nil, outboard.Errorf(outboard.NotFound, "checkpoint %s does not build on %s", id, base)
	}
	return all[:i], nil
}

// Forget implements sandbox.Layers.
func (p *Provider) Forget(_ context.Context, id outboard.CheckpointID) error {
	if !outboard.ValidID(outboard.PrefixCheckpoint, string(id)) {
		return nil
	}
	if err := os.Remove(filepath.Join(p.dir, checkpointsDir, string(id))); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forgetting checkpoint %s: %w", id, err)
	}
	return nil
}

// Kept implements sandbox.Layers.
func (p *Provider) Kept(context.Context) ([]outboard.CheckpointID, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, checkpointsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing checkpoints: %w", err)
	}
	var ids []outboard.CheckpointID
	for _, e := range entries {
		if outboard.ValidID(outboard.PrefixCheckpoint, e.Name()) {
			ids = append(ids, outboard.CheckpointID(e.Name()))
		}
	}
	return ids, nil
}

// Sweep implements sandbox.Layers. What goes is first renamed, under a lock that makes sure that nobody is about
// to build on it; when somebody is, the next sweep will do.
func (p *Provider) Sweep(ctx context.Context) error {
	if !p.hasLayers() {
		return nil
	}
	if err := p.condemnLayers(); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	if err := p.hollow(ctx); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(p.dir, layersDir))
	if err != nil {
		return fmt.Errorf("listing layers: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), condemned) {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := removeTree(p.layer(e.Name())); err != nil {
			return fmt.Errorf("removing a layer: %w", err)
		}
	}
	return nil
}

// condemnLayers renames the layers that nothing is above. Where it cannot be read what somebody is above,
// nothing goes at all.
func (p *Provider) condemnLayers() error {
	unlock, err := p.lockLayers(unix.LOCK_EX | unix.LOCK_NB)
	if err != nil {
		return err
	}
	defer unlock()
	entries, err := os.ReadDir(filepath.Join(p.dir, layersDir))
	if err != nil {
		return fmt.Errorf("listing layers: %w", err)
	}
	used, err := p.usedLayers()
	if err != nil {
		return fmt.Errorf("finding out which layers are in use: %w", err)
	}
	for _, e := range entries {
		if used[e.Name()] || strings.HasPrefix(e.Name(), condemned) {
			continue
		}
		if err := removeTree(p.layer(condemned + e.Name())); err != nil { // of a sweep that was cut short
			return fmt.Errorf("removing a layer: %w", err)
		}
		if err := os.Rename(p.layer(e.Name()), p.layer(condemned+e.Name())); err != nil {
			return fmt.Errorf("removing a layer: %w", err)
		}
	}
	return nil
}

// usedLayers returns which of the layers a sandbox or a checkpoint is above. What was made ahead is above none.
// An error means that nobody knows.
func (p *Provider) usedLayers() (map[string]bool, error) {
	used := make(map[string]bool)
	err := p.keptLayers(func(name string) error {
		used[name] = true
		s, err := p.loadStack(name)
		if err != nil {
			return fmt.Errorf("layer %s: %w", name, err)
		}
		for _, l := range s.Below {
			used[l] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	ids, err := p.ids()
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		b := place{id: id, dir: filepath.Join(p.dir, string(id))}
		if err := b.layers(used); err != nil {
			return nil, err
		}
	}
	return used, nil
}

// keptLayers calls use for the top layer of every checkpoint that is here.
func (p *Provider) keptLayers(use func(string) error) error {
	ids, err := p.Kept(context.Background())
	if err != nil {
		return err
	}
	for _, id := range ids {
		name, err := os.Readlink(filepath.Join(p.dir, checkpointsDir, string(id)))
		if err == nil {
			_, err = os.Lstat(p.layer(name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // forgotten meanwhile, or lost
		}
		if err == nil {
			err = use(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// layers notes what a sandbox is above: one of which nobody knows what is attached, too, since processes may
// still read from it.
func (b place) layers(used map[string]bool) error {
	if name, err := os.Readlink(b.path(flattenedLink)); err == nil {
		used[name] = true // to be built on
	}
	return b.stacks(func(below []string) {
		for _, l := range below {
			used[l] = true
		}
	})
}

// unreadable returns err, of a look at what a sandbox is above, unless the sandbox has been destroyed;
// EWOULDBLOCK while somebody makes it or removes it.
func (b place) unreadable(err error) error {
	lock, lerr := lockFile(b.dir, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(lerr, fs.ErrNotExist) {
		return nil
	}
	if lerr != nil {
		return lerr
	}
	defer lock.Close()
	if _, gone := os.Lstat(b.dir); errors.Is(gone, fs.ErrNotExist) {
		return nil
	}
	return err
}

// endWork removes the layer that what a sandbox has written would have become, which nothing else can be above.
// Most have none.
func (p *Provider) endWork(b place) error {
	n, err := p.current(b)
	if err != nil {
		return nil // without layers, or damaged
	}
	layer := p.layer(layerName(b.id, n))
	if _, err := os.Lstat(layer); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := p.lockLayers(unix.LOCK_SH) // against Sweep, which would remove it too
	if err != nil {
		return err
	}
	defer unlock()
	return removeTree(layer)
}

// lockLayers keeps the sweep (exclusive) from whoever is about to build on layers (shared).
func (p *Provider) lockLayers(how int) (unlock func(), err error) {
	f, err := openUnpolled(filepath.Join(p.dir, layersDir))
	if err != nil {
		return nil, fmt.Errorf("locking the layers: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking the layers: %w", err)
	}
	return func() { f.Close() }, nil
}

func layerName(id outboard.SandboxID, n int) string { return string(id) + "." + strconv.Itoa(n) }

// errPushing is of a sandbox whose server died while the mounts were swapped: what is attached inside is not known.
var errPushing = errors.New("its workspace was being swapped when the server died")

// current returns the number of the writable layer in use.
func (p *Provider) current(b place) (int, error) {
	names, err := readNamesAt(unix.AT_FDCWD, b.dir)
	if err != nil {
		return 0, err
	}
	current := -1
	for _, name := range names {
		if strings.HasSuffix(name, pushingSuffix) {
			return 0, errPushing
		}
		if n, err := strconv.Atoi(name); err == nil {
			current = max(current, n)
		}
	}
	if current < 0 {
		return 0, fs.ErrNotExist
	}
	return current, nil
}
