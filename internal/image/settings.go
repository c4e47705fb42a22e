package image

import (
	"path"
	"regexp"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// harmfulPrefixes begin variables that an image may not set: they make programs run or load what another names,
// or claim to be ours.
var harmfulPrefixes = []string{"LD_", "DYLD_", "BASH_FUNC_", "OUTBOARD_", "GLIBC_", "MALLOC_"}

// harmful are variables that an image may not set, in capitals.
var harmful = []string{
	// what shells run or split by
	"BASH_ENV", "ENV", "IFS", "PROMPT_COMMAND", "SHELLOPTS", "BASHOPTS", "PS4", "CDPATH", "GLOBIGNORE",
	// what the C library loads and resolves by
	"GCONV_PATH", "LOCPATH", "NLSPATH", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS",
	"HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", // who and where the tool is
	"HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY", // the gateway is the way out
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
	"PIP_CERT", "CARGO_HTTP_CAINFO", "DENO_CERT", "NPM_CONFIG_CAFILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_USE_ENV_PROXY",
	"NODE_TLS_REJECT_UNAUTHORIZED", "GIT_SSL_NO_VERIFY", "PYTHONHTTPSVERIFY", // and whom to trust on it
}

var (
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}$`)
)

// SafeEnv reports whether an image, or a step of a template, may set a variable.
func SafeEnv(name, value string) bool {
	up := strings.ToUpper(name)
	if !envName.MatchString(name) || strings.ContainsRune(value, 0) || slices.Contains(harmful, up) {
		return false
	}
	if up == "PATH" {
		for dir := range strings.SplitSeq(value, ":") {
			if !path.IsAbs(dir) {
				return false // the working directory's programs would run in place of others
			}
		}
	}
	return !slices.ContainsFunc(harmfulPrefixes, func(p string) bool { return strings.HasPrefix(up, p) })
}

// SafeDir reports whether a directory may be where programs begin.
func SafeDir(dir string) bool {
	if !path.IsAbs(dir) || strings.ContainsRune(dir, 0) || len(dir) > DefaultLimits.Name ||
		path.Clean(dir) != strings.TrimRight(dir, "/") && dir != "/" {
		return false
	}
	return !slices.ContainsFunc([]string{"/proc", "/sys", "/dev", "/run/outboard"}, func(p string) bool {
		return dir == p || strings.HasPrefix(dir, p+"/")
	})
}

// SafeUser reports whether a user may be what programs run as.
func SafeUser(user string) bool { return userName.MatchString(user) }

// settings is what of a configuration is heeded. Entrypoint, command, volumes, ports, health checks, labels and
// shell are not.
func settings(c v1.Config) Settings {
	var s Settings
	size := 0
	for _, pair := range c.Env {
		k, v, ok := strings.Cut(pair, "=")
		size += len(pair)
		if !ok || len(s.Env) == maxEnv || size > maxEnvBytes || !SafeEnv(k, v) {
			continue
		}
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env[k] = v
	}
	if SafeDir(c.WorkingDir) {
		s.Workdir = path.Clean(c.WorkingDir)
	}
	if user, _, _ := strings.Cut(c.User, ":"); SafeUser(user) {
		s.User = user
	}
	return s
}
