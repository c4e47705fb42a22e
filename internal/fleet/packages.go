package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/sandbox"
)

// packagesDir is where packages of languages are installed, apart from what the image has.
const packagesDir = "/opt/outboard"

// packagesVersion is part of every key: raise it when the same list is to be installed in another way.
const packagesVersion = 1

// scratch is the home of package managers, for their caches; nothing of it stays.
const scratch = "/var/tmp/outboard-packages"

// manager says how one package manager installs. The packages are the arguments of the script.
type manager struct {
	program string // must be in the root file system
	script  string
	env     map[string]string // for what uses the packages
	mirror  string            // variable that names another registry
}

// managers are in the order they install in.
var managers = []struct {
	name string
	manager
}{
	{"apt", manager{program: "apt-get", script: `set -e; export DEBIAN_FRONTEND=noninteractive
apt-get update -q -o APT::Sandbox::User=root
apt-get install -y -q --no-install-recommends -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 -- "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb`}},
	{"cargo", manager{program: "cargo", script: `exec cargo install --root ` + packagesDir + ` -- "$@"`}},
	{"gem", manager{program: "gem", script: `exec gem install --no-document --install-dir ` + packagesDir +
		`/gems --bindir ` + packagesDir + `/bin -- "$@"`,
		env: map[string]string{"GEM_PATH": packagesDir + "/gems"}}},
	{"go", manager{program: "go", mirror: "GOPROXY", script: `set -e; export GOBIN=` + packagesDir + `/bin GOFLAGS=-modcacherw
for p in "$@"; do case "$p" in *@*) go install "$p";; *) go install "$p@latest";; esac; done`}},
	{"npm", manager{program: "npm", mirror: "NPM_CONFIG_REGISTRY", script: `exec npm install --global --prefix ` +
		packagesDir + ` --no-audit --no-fund --no-update-notifier -- "$@"`,
		env: map[string]string{"NODE_PATH": packagesDir + "/lib/node_modules"}}},
	{"pip", manager{program: "python3", mirror: "PIP_INDEX_URL",
		script: `exec python3 -m pip install --no-input --disable-pip-version-check --root-user-action=ignore --target ` + packagesDir + `/python -- "$@"`,
		env:    map[string]string{"PYTHONPATH": packagesDir + "/python"}}},
}

// packagesPath is searched for programs first, where packages are installed.
const packagesPath = packagesDir + "/bin:" + packagesDir + "/python/bin"

// packages adds a layer with the packages of an environment to a stack.
func (f *Fleet) packages(ctx context.Context, st *stack, env outboard.EnvConfig) error {
	if st.rootfs != "" && st.rootfs != "host" && st.rootfs != sandbox.Bare {
		return outboard.Errorf(outboard.Invalid, "packages are not installed over the directory or archive %q of "+
			"this server", st.rootfs).
			WithHint("use an image as the environment's root file system, or the host's programs")
	}
	if len(env.Packages["apt"]) > 0 && st.rootfs != sandbox.Bare {
		return outboard.Errorf(outboard.Invalid, "apt packages need an image: what sandboxes show of the host's "+
			"programs is shared and not written to").
			WithHint("set config.outboard.image of the environment, for example to debian:stable-slim")
	}
	key, err := packagesKey(*st, env.Packages)
	if err != nil {
		return err
	}
	where, vars, err := f.packageNetwork(env)
	if err != nil {
		return err
	}
	err = f.build(ctx, orDefault(st.org), st, key, where, func(ctx context.Context, m *machine) (built, error) {
		note := built{Env: map[string]string{}}
		for _, pm := range managers {
			if list := env.Packages[pm.name]; len(list) > 0 {
				if err := install(ctx, m, pm.name, pm.manager, vars, list); err != nil {
					return note, err
				}
				maps.Copy(note.Env, pm.env)
			}
		}
		_, _, err := command(ctx, m, ProcessStart{Argv: []string{"/bin/sh", "-c", "rm -rf " + scratch}, User: "root",
			Cwd: "/"})
		return note, err
	})
	st.path = packagesPath
	return err
}

// packagesKey is everything that decides what is installed, as far as it is known beforehand.
func packagesKey(st stack, packages map[string][]string) (string, error) {
	sorted := map[string][]string{}
	for name, list := range packages {
		if len(list) > 0 {
			sorted[name] = slices.Compact(slices.Sorted(slices.Values(list)))
		}
	}
	host := ""
	if st.rootfs != sandbox.Bare {
		release, err := os.ReadFile("/etc/os-release") // what programs the host has
		if err != nil && !os.IsNotExist(err) {
			return "", fmt.Errorf("asking what system this is: %w", err)
		}
		host = string(release)
	}
	key, err := json.Marshal(map[string]any{"packages": sorted, "layers": st.layers, "host": host,
		"version": packagesVersion})
	return string(key), err
}

// packageNetwork is the network of the build alone: what package managers fetch from, and the mirrors that the
// operator names.
func (f *Fleet) packageNetwork(env outboard.EnvConfig) (outboard.EnvConfig, map[string]string, error) {
	out := outboard.EnvConfig{Kind: env.Kind, Isolation: env.Isolation, Limits: env.Limits,
		Networking: outboard.Networking{Mode: "limited", AllowPackageManagers: true}}
	vars := map[string]string{}
	for _, pm := range managers {
		address := f.cfg.Mirrors[pm.name]
		if address == "" || pm.mirror == "" {
			continue
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			return out, nil, outboard.Errorf(outboard.Invalid, "the mirror %q for %s is no URL", address, pm.name)
		}
		rule := outboard.NetRule{Host: u.Hostname(), Methods: []string{"GET", "HEAD"}}
		if p := u.Port(); p != "" {
			if rule.Port, err = strconv.Atoi(p); err != nil {
				return out, nil, outboard.Errorf(outboard.Invalid, "the mirror %q for %s is no URL", address, pm.name)
			}
		}
		out.Networking.Rules = append(out.Networking.Rules, rule)
		vars[pm.mirror] = address
	}
	return out, vars, nil
}

// install runs one package manager as the machine's root.
func install(ctx context.Context, m *machine, name string, pm manager, vars map[string]string, list []string) error {
	code, _, err := command(ctx, m,
		ProcessStart{Argv: []string{"/bin/sh", "-c", "mkdir -p " + scratch + " " + packagesDir + "/bin && command -v " +
			pm.program}, User: "root", Cwd: "/"})
	if err != nil {
		return fmt.Errorf("looking for %s: %w", pm.program, err)
	}
	if code != 0 {
		return outboard.Errorf(outboard.Invalid, "installing the %s packages of the environment: there is no %s in "+
			"its root file system", name, pm.program).
			WithHint("use an image that has it, or list what brings it under apt")
	}
	env := map[string]string{"HOME": scratch, "TMPDIR": scratch}
	maps.Copy(env, vars)
	code, said, err := command(ctx, m, ProcessStart{Argv: append([]string{"/bin/sh", "-c", pm.script, name}, list...),
		User: "root", Cwd: scratch, Env: env})
	if err != nil {
		return fmt.Errorf("running %s: %w", name, err)
	}
	if code != 0 {
		return outboard.Errorf(outboard.Invalid, "installing the %s packages of the environment (%s): %s ended with "+
			"status %d%s",
			name, strings.Join(list, " "), name, code, andSaid(said))
	}
	return nil
}
