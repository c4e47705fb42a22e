package image

import "time"

// Limits bounds what one image may cost. Zero fields mean the defaults.
type Limits struct {
	Layers   int   // of one image
	Entries  int   // files of one layer
	Layer    int64 // bytes of one layer, unpacked
	Image    int64 // bytes of all layers of an image, unpacked
	Config   int64 // bytes of an image's configuration
	Download int64 // bytes of all layers of an image as they are transferred
	Name     int   // bytes of a file's path
}

// DefaultLimits hold where Config.Limits says nothing.
var DefaultLimits = Limits{
	// What other engines allow. The kernel takes 500 layers; a sandbox adds those of its packages, steps and
	// checkpoints.
	Layers: 127,
	// The largest images of build tools have some 400,000 files in all.
	Entries: 1_000_000,
	// Machine learning images have layers of 5 GiB. What is larger is made to fill a disk.
	Layer: 16 << 30, Image: 32 << 30, Download: 16 << 30,
	// Configurations are some KiB; every build step adds a line.
	Config: 4 << 20,
	// PATH_MAX, which no program inside could go beyond either.
	Name: 4096,
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct{ have, def *int64 }{{&l.Layer, &d.Layer}, {&l.Image, &d.Image}, {&l.Config, &d.Config},
		{&l.Download, &d.Download}} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	for _, f := range []struct{ have, def *int }{{&l.Layers, &d.Layers}, {&l.Entries, &d.Entries}, {&l.Name, &d.Name}} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return l
}

const (
	// maxEnv and maxEnvBytes bound the variables taken from a configuration: they are in the environment of
	// every process.
	maxEnv      = 256
	maxEnvBytes = 32 << 10
	// maxRef bounds an image's name.
	maxRef = 512
	// maxMeta bounds one of the store's own files.
	maxMeta = 8 << 20
	// maxUpload bounds an archive that is imported: an image as it is transferred, with room for its manifests.
	maxUpload = 17 << 30
	// maxUploadFiles bounds the files of an imported layout.
	maxUploadFiles = 4096
	// responseTimeout bounds a registry's silence before it answers; idleTimeout closes connections.
	responseTimeout = 30 * time.Second
	idleTimeout     = 30 * time.Second
	// lockPoll is how often a lock that another has is tried again: the kernel tells nobody when it is free.
	lockPoll = 25 * time.Millisecond
	// abandonedAfter is when what an interrupted unpacking left may go: longer than any takes between two files.
	abandonedAfter = 6 * time.Hour
)
