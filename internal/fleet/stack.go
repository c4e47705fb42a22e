package fleet

import (
	"context"
	"io"
	"maps"
	"time"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/image"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// stack is what a machine begins with.
type stack struct {
	rootfs   string   // as in sandbox.Spec
	layers   []string // names of image layers over it, top first
	settings image.Settings
	path     string // directories that are searched for programs first
	build    bool   // the machine is to build another layer
	start    string // a template's commands; see begin
	ready    string
	owner    outboard.KeyID // of machines that build; "" = nobody's
	person   outboard.UserID
	org      outboard.OrgID // whose records tell of them
	release  func()         // the layers are in use by a machine, or not needed any more
}

// CheckImage says what is wrong with an image's name, as an Invalid error.
func CheckImage(ref string) error { return image.Check(ref) }

// ImageRegistry returns the host, and the port if there is one, that an image is pulled from.
func ImageRegistry(ref string) (string, error) { return image.Registry(ref) }

// prepare brings what the machines of an organization's environment begin with to this host. The caller releases it.
func (f *Fleet) prepare(ctx context.Context, org outboard.OrgID, env outboard.EnvConfig) (st stack, err error) {
	st = stack{rootfs: env.Rootfs, org: org, release: func() {}}
	installs := env.Installs()
	made := IsBase(env.Rootfs)
	if env.Image == "" && env.Build == "" && !installs && !made {
		return st, nil
	}
	if err := f.stacked(); err != nil {
		return st, err
	}
	ctx, cancel := context.WithTimeout(ctx, PrepareTimeout)
	defer cancel()
	if st.release, err = f.cfg.Images.Hold(ctx); err != nil {
		return st, err
	}
	defer func() {
		if err != nil {
			st.release()
		}
	}()
	if env.Image != "" {
		as, err := f.loginFor(ctx, org, env.Image)
		if err != nil {
			return st, err
		}
		img, err := f.cfg.Images.ResolveAs(ctx, env.Image, as)
		if err != nil {
			return st, err
		}
		st.rootfs, st.layers, st.settings = sandbox.Bare, img.Layers, img.Settings
	}
	if made {
		if err := f.system(ctx, &st, env); err != nil {
			return st, err
		}
	}
	if env.Build != "" {
		if err := f.template(ctx, &st, env.Build); err != nil {
			return st, err
		}
	}
	if installs {
		err = f.packages(ctx, &st, env)
	}
	return st, err
}

// add sets variables of what runs in the stack.
func (st *stack) add(env map[string]string) {
	all := maps.Clone(st.settings.Env)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	st.settings.Env = all
}

// stacked refuses images where nothing can be made of them.
func (f *Fleet) stacked() error {
	if _, ok := f.cfg.Provider.(sandbox.Stacked); !ok || f.cfg.Images == nil {
		return outboard.Errorf(outboard.Unavailable, "provider %s makes no sandboxes from images",
			f.cfg.Provider.Name()).WithHint("outboard doctor")
	}
	return nil
}

// fill puts a stack into the description of a machine. Variables that the description has win.
func (f *Fleet) fill(spec *sandbox.Spec, st stack) {
	spec.Rootfs, spec.Build, spec.Path = st.rootfs, st.build, st.path
	if len(st.layers) == 0 {
		return
	}
	spec.Layers = f.cfg.Images.Dirs(st.layers)
	env := maps.Clone(st.settings.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, spec.Env)
	spec.Env = env
}

// PruneImages removes layers that no machine uses, that no tag of a template means, and that nobody has begun
// with since.
func (f *Fleet) PruneImages(ctx context.Context, since time.Time) (image.Pruned, error) {
	if f.cfg.Images == nil || f.cfg.Provider == nil {
		return image.Pruned{}, outboard.Errorf(outboard.Unavailable, "this server keeps no images")
	}
	wanted, err := f.wantedLayers(ctx)
	if err != nil {
		return image.Pruned{}, err
	}
	used := func() (map[string]bool, error) { return nil, nil }
	if p, ok := f.cfg.Provider.(sandbox.Stacked); ok {
		used = p.InUse
	}
	return f.cfg.Images.Prune(ctx, since, func(layer string) bool { return wanted[layer] }, used)
}

// Image is what a name means here.
type Image = image.Image

// PrunedImages is what PruneImages removed.
type PrunedImages = image.Pruned

// images returns the store of images, Unavailable where there is none.
func (f *Fleet) images() (*image.Store, error) {
	if f.cfg.Images == nil {
		return nil, outboard.Errorf(outboard.Unavailable, "this server keeps no images")
	}
	return f.cfg.Images, nil
}

// Images lists what names of images mean on this host.
func (f *Fleet) Images() ([]Image, error) {
	s, err := f.images()
	if err != nil {
		return nil, err
	}
	return s.Images()
}

// PullImage makes a name mean what its registry says now.
func (f *Fleet) PullImage(ctx context.Context, ref string) (Image, error) {
	s, err := f.images()
	if err != nil {
		return Image{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, PrepareTimeout)
	defer cancel()
	release, err := s.Hold(ctx)
	if err != nil {
		return Image{}, err
	}
	defer release()
	return s.Pull(ctx, ref)
}

// ImportImage makes a name mean the image of an archive.
func (f *Fleet) ImportImage(ctx context.Context, ref string, r io.Reader) (Image, error) {
	s, err := f.images()
	if err != nil {
		return Image{}, err
	}
	release, err := s.Hold(ctx)
	if err != nil {
		return Image{}, err
	}
	defer release()
	return s.Import(ctx, ref, r)
}

// RemoveImage forgets what a name means. Machines that run go on.
func (f *Fleet) RemoveImage(ctx context.Context, ref string) error {
	s, err := f.images()
	if err != nil {
		return err
	}
	return s.Remove(ctx, ref)
}
