package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox/container"
	"github.com/outboard-dev/outboard/internal/sandbox/native"
)

// repository names the images that are made here.
const repository = "outboard/root"

func filters(key, value string) string {
	data, err := json.Marshal(map[string][]string{key: {value}})
	if err != nil {
		panic(err) // strings only
	}
	return string(data)
}

// image returns the image that has the layers of a plan, which is made when it is not there.
func (e *Engine) image(ctx context.Context, plan *container.Plan) (string, error) {
	tag, err := e.tag(ctx, plan)
	if err != nil {
		return "", err
	}
	e.mu.Lock()
	making := e.images[tag]
	if making == nil {
		making = new(sync.Mutex)
		e.images[tag] = making
	}
	e.mu.Unlock()
	making.Lock()
	defer making.Unlock()
	name := repository + ":" + tag
	err = e.call(ctx, http.MethodGet, "/images/"+name+"/json", nil, nil, nil)
	if !refused(err, http.StatusNotFound) {
		return name, err
	}
	if err := e.make(ctx, plan.Lower, tag); err != nil {
		return "", fmt.Errorf("making an image of the root file system: %w", err)
	}
	return name, e.sweep(ctx, plan.Lower, name)
}

// tag names what an image is made of. A directory that its owner may change is looked through, the rest never
// changes under its name.
func (e *Engine) tag(ctx context.Context, plan *container.Plan) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", e.dir)
	for _, l := range plan.Lower {
		fmt.Fprintf(h, "%q\n", l)
		if slices.Contains(plan.Changing, l) {
			if err := look(ctx, h, l); err != nil {
				return "", outboard.Errorf(outboard.Unavailable, "looking at the root file system %s: %w", l, err)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// look writes down what changes when anything below a directory does.
func look(ctx context.Context, h hash.Hash, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		fmt.Fprintf(h, "%q %d %d %d %d %d %d\n", name, st.Mode, st.Ino, st.Size, st.Ctim.Nano(), st.Uid, st.Gid)
		return nil
	})
}

// make sends layers to the engine, as one.
func (e *Engine) make(ctx context.Context, lower []string, tag string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, importTimeout, outboard.Errorf(outboard.Unavailable,
		"an image was not made within %s", importTimeout))
	defer cancel()
	view, err := native.View(lower)
	if err != nil {
		return err
	}
	defer view.Close()
	labels, err := json.Marshal(lower)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	var pack sync.WaitGroup
	pack.Go(func() { w.CloseWithError(writeTar(ctx, w, view)) })
	defer pack.Wait()
	defer r.Close()
	query := url.Values{"fromSrc": {"-"}, "repo": {repository}, "tag": {tag},
		"changes": {"LABEL " + dirLabel + "=" + quoted(e.dir),
			"LABEL " + rootsLabel + "=" + quoted(string(labels))}}
	body, err := e.open(ctx, http.MethodPost, "/images/create", query, r)
	if err != nil {
		return said("importing", err)
	}
	defer body.Close()
	// a line per step; a mistake comes with the status of success
	for d := json.NewDecoder(io.LimitReader(body, maxAnswer)); ; {
		var step struct{ Error string }
		if err := d.Decode(&step); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return notHere("reading the Docker engine's answer: %w", err)
		}
		if step.Error != "" {
			return notHere("importing: the Docker engine says: %s", step.Error)
		}
	}
}

// quoted is a label's value as the engine reads it.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(s) + `"`
}

// sweep removes images of this directory whose layers are gone, or that an image of the same layers has
// replaced, and those of directories that are gone. One that a container uses stays until the next time.
func (e *Engine) sweep(ctx context.Context, lower []string, current string) error {
	var found []struct {
		RepoTags []string
		Labels   map[string]string
	}
	if err := e.call(ctx, http.MethodGet, "/images/json", url.Values{"filters": {filters("label", dirLabel)}}, nil,
		&found); err != nil {
		return said("listing images", err)
	}
	for _, image := range found {
		var roots []string
		owner := image.Labels[dirLabel]
		if json.Unmarshal([]byte(image.Labels[rootsLabel]), &roots) != nil || there([]string{owner}) &&
			(owner != e.dir || !slices.Equal(roots, lower) && there(roots)) {
			continue
		}
		for _, name := range image.RepoTags {
			if name == current || !strings.HasPrefix(name, repository+":") {
				continue
			}
			err := e.call(ctx, http.MethodDelete, "/images/"+name, nil, nil, nil)
			if err != nil && !refused(err, http.StatusConflict) && !refused(err, http.StatusNotFound) {
				return said("removing an image", err)
			}
		}
	}
	return nil
}

// there reports whether all directories exist.
func there(dirs []string) bool {
	for _, d := range dirs {
		if _, err := os.Lstat(d); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// writeTar writes a tree without devices, set-id bits and attributes, none of which mean anything in a sandbox.
func writeTar(ctx context.Context, w io.Writer, view *os.Root) error {
	tw := tar.NewWriter(w)
	first := map[[2]uint64]string{} // device and inode of written files with several names
	files := 0
	err := fs.WalkDir(view.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		if files++; files > maxImageFiles {
			return outboard.Errorf(outboard.Invalid, "it has more than %d files", maxImageFiles)
		}
		return writeFile(tw, view, name, d, first)
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func writeFile(tw *tar.Writer, view *os.Root, name string, d fs.DirEntry, first map[[2]uint64]string) error {
	fi, err := d.Info()
	if err != nil {
		return err
	}
	st := fi.Sys().(*syscall.Stat_t)
	id := [2]uint64{uint64(st.Dev), st.Ino}
	h := &tar.Header{Name: name, Mode: int64(st.Mode & 0o1777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: fi.ModTime().Truncate(time.Second), Format: tar.FormatPAX}
	var content io.Reader = bytes.NewReader(nil)
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fi.Mode()&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = view.Readlink(name); err != nil {
			return err
		}
	case fi.Mode().IsRegular() && st.Nlink > 1 && first[id] != "":
		h.Typeflag, h.Linkname = tar.TypeLink, first[id]
	case fi.Mode().IsRegular():
		first[id] = name
		f, err := view.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		h.Typeflag, h.Size, content = tar.TypeReg, fi.Size(), io.LimitReader(f, fi.Size())
	default:
		return nil
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(tw, content)
	if err == nil && n != h.Size {
		err = fmt.Errorf("%q is shorter than it was", name)
	}
	return err
}
