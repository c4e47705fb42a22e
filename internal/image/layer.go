package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/outboard-dev/outboard"
)

// The two kinds of layers, by how their names begin.
const (
	contentPrefix = "sha256-" // then the digest of the archive it was unpacked from
	builtPrefix   = "built-"  // then the digest of what it was made by
)

// What is below tmpDir, by how its name begins: layers on their way out, while they may be put back and after,
// and those that are being built, under the layer's lock.
const (
	halfPrefix = "half-"
	gonePrefix = "gone-"
	deadPrefix = "dead-"
)

// heldSuffix ends the names of what is below tmpDir that its maker has locked: see makeHeld.
const heldSuffix = ".held"

var layerName = regexp.MustCompile(`^(sha256|built)-[0-9a-f]{64}$`)

// layerInfo is what is kept of a layer beside it.
type layerInfo struct {
	Bytes   int64           `json:"bytes"`
	Entries int             `json:"entries"`
	Note    json.RawMessage `json:"note,omitempty"` // of who built it
}

// Built names the layer that is made by what key describes, entirely.
func Built(key string) string { return builtPrefix + hash(key) }

// Dir is a layer's directory. It may not be there.
func (s *Store) Dir(layer string) string { return filepath.Join(s.cfg.Dir, layersDir, layer) }

// Dirs are the directories of layers.
func (s *Store) Dirs(layers []string) []string {
	out := make([]string, len(layers))
	for i, l := range layers {
		out[i] = s.Dir(l)
	}
	return out
}

func (s *Store) has(layer string) bool {
	fi, err := os.Lstat(s.Dir(layer))
	return layerName.MatchString(layer) && err == nil && fi.IsDir()
}

func (s *Store) info(layer string) (i layerInfo, err error) {
	data, err := os.ReadFile(filepath.Join(s.cfg.Dir, infoDir, layer+".json"))
	if err == nil {
		err = json.Unmarshal(data, &i)
	}
	return i, err
}

// Build returns what is noted of a built layer, making it first when it is not here: fill gets the name of a
// directory that does not exist yet, in the file system of the store, and makes it. One process makes one at a
// time; others wait. What fill leaves after an error is removed.
func (s *Store) Build(ctx context.Context, layer string,
	fill func(ctx context.Context, dir string) (note any, err error)) (json.RawMessage, error) {
	if !layerName.MatchString(layer) {
		return nil, outboard.Errorf(outboard.Internal, "%q names no layer", layer)
	}
	unlock, err := s.lock(ctx, layer, true)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if s.has(layer) {
		i, err := s.info(layer)
		if err != nil {
			return nil, fmt.Errorf("reading about a layer: %w", err)
		}
		now := time.Now()
		return i.Note, os.Chtimes(filepath.Join(s.cfg.Dir, infoDir, layer+".json"), now, now)
	}
	tmp := filepath.Join(s.cfg.Dir, tmpDir, halfPrefix+layer) // whoever had it before us is dead: we have the lock
	if err := errors.Join(removeTree(tmp), os.Mkdir(tmp, 0o700)); err != nil {
		return nil, fmt.Errorf("making a layer: %w", err)
	}
	defer func() {
		if err := removeTree(tmp); err != nil {
			s.log.Warn("a half-made layer was not removed", "dir", tmp, "err", err)
		}
	}()
	dir := filepath.Join(tmp, "fs")
	note, err := fill(ctx, dir)
	if err != nil {
		return nil, err
	}
	var info layerInfo
	if info.Note, err = json.Marshal(note); err != nil {
		return nil, fmt.Errorf("noting a layer: %w", err)
	}
	if info.Bytes, info.Entries, err = measure(dir); err != nil {
		return nil, err
	}
	return info.Note, s.keep(dir, layer, info)
}

// keep gives a directory its place, whole or not at all.
func (s *Store) keep(dir, layer string, info layerInfo) error {
	if err := writeJSON(filepath.Join(s.cfg.Dir, infoDir, layer+".json"), info); err != nil {
		return err
	}
	if err := syncTree(dir); err != nil {
		return fmt.Errorf("writing layer %s to the disk: %w", layer, err)
	}
	err := os.Rename(dir, s.Dir(layer))
	if err != nil && s.has(layer) {
		return nil // somebody was faster, and theirs is the same
	}
	if err != nil {
		return fmt.Errorf("keeping layer %s: %w", layer, err)
	}
	return nil
}

// measure counts what is in a tree.
func measure(dir string) (bytes int64, entries int, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		entries++
		if fi, err := d.Info(); err == nil && fi.Mode().IsRegular() {
			bytes += fi.Size()
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("measuring a layer: %w", err)
	}
	return bytes, entries, nil
}

// removeTree removes a tree whose directories may be closed to their owner.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// Use reports whether all of some layers are here, and notes that they are used now.
func (s *Store) Use(layers []string) (bool, error) {
	now := time.Now()
	for _, l := range layers {
		if !s.has(l) {
			return false, nil
		}
		if !strings.HasPrefix(l, builtPrefix) {
			continue
		}
		if err := os.Chtimes(filepath.Join(s.cfg.Dir, infoDir, l+".json"), now, now); err != nil {
			return false, fmt.Errorf("noting the use of a layer: %w", err)
		}
	}
	return true, nil
}

// Hold keeps every layer that is here from being removed until it is released. It is for the moment between
// finding layers and having them in use where Prune's caller sees it.
func (s *Store) Hold(ctx context.Context) (release func(), err error) {
	return s.lock(ctx, useLock, false)
}

// Pruned is what Prune removed.
type Pruned struct {
	Layers int   `json:"layers"`
	Bytes  int64 `json:"bytes"`
}

// Prune removes the layers that nobody needs: not those that used names by their directories, nor those of
// images that were used since, nor built ones that keep wants or that were used since. What names mean is kept.
// used is asked twice: before layers are taken out of the way, and after, so that one which came into use
// meanwhile is put back.
func (s *Store) Prune(ctx context.Context, since time.Time, keep func(layer string) bool,
	used func() (map[string]bool, error)) (Pruned, error) {
	var out Pruned
	unlock, err := s.lock(ctx, useLock, true)
	if err != nil {
		return out, err
	}
	defer unlock()
	if err := s.sweep(); err != nil {
		return out, err
	}
	wanted, err := s.wanted(since)
	if err != nil {
		return out, err
	}
	before, err := used()
	if err != nil {
		return out, err
	}
	away, err := s.takeAway(func(layer string) bool {
		return wanted[layer] || keep != nil && keep(layer) || before[s.Dir(layer)] || s.touched(layer, since)
	})
	if err != nil {
		return out, err
	}
	after, err := used()
	for layer, dir := range away {
		if err != nil || after[s.Dir(layer)] {
			err = errors.Join(err, os.Rename(dir, s.Dir(layer)))
			continue
		}
		if i, err := s.info(layer); err == nil {
			out.Bytes += i.Bytes
		}
		given, _ := filepath.Glob(filepath.Join(s.cfg.Dir, givenDir, layer+".*"))
		for _, g := range given {
			err = errors.Join(err, os.Remove(g))
		}
		dead := filepath.Join(s.cfg.Dir, tmpDir, deadPrefix+layer) // from here on it is not put back
		err = errors.Join(err, os.Remove(filepath.Join(s.cfg.Dir, infoDir, layer+".json")), os.Rename(dir, dead),
			removeTree(dead))
		out.Layers++
	}
	return out, err
}

// touched reports whether a built layer was used since; of others their images say so.
func (s *Store) touched(layer string, since time.Time) bool {
	fi, err := os.Stat(filepath.Join(s.cfg.Dir, infoDir, layer+".json"))
	return strings.HasPrefix(layer, builtPrefix) && err == nil && fi.ModTime().After(since)
}

// wanted are the layers of images that were used since.
func (s *Store) wanted(since time.Time) (map[string]bool, error) {
	images, err := s.Images()
	if err != nil {
		return nil, err
	}
	wanted := map[string]bool{}
	for _, img := range images {
		if img.UsedAt.After(since) || img.Imported { // what nobody can pull again is removed by name
			for _, l := range img.Layers {
				wanted[l] = true
			}
		}
	}
	return wanted, nil
}

// takeAway moves layers out of their places, by name.
func (s *Store) takeAway(stay func(layer string) bool) (map[string]string, error) {
	all, err := os.ReadDir(filepath.Join(s.cfg.Dir, layersDir))
	if err != nil {
		return nil, fmt.Errorf("listing layers: %w", err)
	}
	away := map[string]string{}
	for _, d := range all {
		layer := d.Name()
		if !layerName.MatchString(layer) || stay(layer) {
			continue
		}
		to := filepath.Join(s.cfg.Dir, tmpDir, gonePrefix+layer)
		if err := os.Rename(s.Dir(layer), to); err != nil {
			return away, fmt.Errorf("taking layer %s away: %w", layer, err)
		}
		away[layer] = to
	}
	return away, nil
}

// sweep clears what interrupted processes left: layers that were being removed, and those half-made long ago.
func (s *Store) sweep() error {
	s.sweepHeld()
	dir := filepath.Join(s.cfg.Dir, tmpDir)
	all, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing what is being made: %w", err)
	}
	for _, d := range all {
		if strings.HasSuffix(d.Name(), heldSuffix) {
			continue // its lock tells, whatever its age
		}
		path := filepath.Join(dir, d.Name())
		if layer, ok := strings.CutPrefix(d.Name(), gonePrefix); ok && layerName.MatchString(layer) && !s.has(layer) {
			// It may be in use: who took it away did not get to asking again.
			if err := os.Rename(path, s.Dir(layer)); err != nil {
				return fmt.Errorf("putting layer %s back: %w", layer, err)
			}
			continue
		}
		if fi, err := d.Info(); err == nil && (strings.HasPrefix(d.Name(), deadPrefix) ||
			time.Since(fi.ModTime()) > abandonedAfter) {
			if err := removeTree(path); err != nil {
				return fmt.Errorf("removing what was left half-made: %w", err)
			}
		}
	}
	return nil
}

// Abandoned removes what processes were making that were killed meanwhile.
func (s *Store) Abandoned(ctx context.Context) error {
	s.sweepHeld()
	all, err := filepath.Glob(filepath.Join(s.cfg.Dir, tmpDir, halfPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range all {
		short, cancel := context.WithTimeout(ctx, 2*lockPoll)
		unlock, err := s.lock(short, strings.TrimPrefix(filepath.Base(dir), halfPrefix), true)
		cancel()
		if outboard.KindOf(err) == outboard.Canceled && ctx.Err() == nil {
			continue // somebody is at it
		}
		if err != nil {
			return err
		}
		err = removeTree(dir)
		unlock()
		if err != nil {
			return fmt.Errorf("removing a half-made layer: %w", err)
		}
	}
	return nil
}

// Remove forgets what a name means. Its layers go with the next Prune.
func (s *Store) Remove(ctx context.Context, ref string) error {
	r, unlock, err := s.lockName(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	err = os.Remove(filepath.Join(s.cfg.Dir, namesDir, hash(r.Name())+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return outboard.Errorf(outboard.NotFound, "there is no image %s here", r.Name()).WithHint("outboard image ls")
	}
	return err
}
