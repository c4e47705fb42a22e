package outboard

import (
	"cmp"
	"time"
)

// Agent is one version of an agent's definition. Rows are immutable: an update makes a new version.
type Agent struct {
	ID          AgentID           `json:"id"`
	Version     int               `json:"version"` // from 1
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Model       ModelConfig       `json:"model"`
	System      string            `json:"system,omitempty"`
	Tools       []Toolset         `json:"tools,omitempty"`
	MCPServers  []MCPServer       `json:"mcp_servers,omitempty"`
	Skills      []SkillRef        `json:"skills,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Identity    Raw               `json:"execution_identity,omitempty"` // kept as sent; unused so far
	CreatedAt   time.Time         `json:"created_at"`                   // of version 1
	UpdatedAt   time.Time         `json:"updated_at"`                   // of this version
	ArchivedAt  time.Time         `json:"archived_at,omitzero"`
	Org         OrgID             `json:"-"` // whose it is
}

// ModelConfig picks a model. ID is "provider/model", or an alias from the configuration, or a bare model name
// that exactly one configured provider serves. "script/<name>" and "script/steps" are the deterministic model.
type ModelConfig struct {
	ID     string `json:"id"`
	Speed  string `json:"speed,omitempty"`  // "standard", "fast" or ""
	Effort string `json:"effort,omitempty"` // "low", "medium", "high", "xhigh", "max" or ""
	Geo    string `json:"inference_geo,omitempty"`
}

// Toolset is one entry of an agent's tools.
//
// Kind "builtin" is the built-in toolset: Default and Configs switch its tools and set their policy. Kind
// "custom" is one client-executed tool: Name, Description, InputSchema. Kind "mcp" is the tools of one MCP
// server: Server.
type Toolset struct {
	Kind        string       `json:"kind"`
	Default     ToolConfig   `json:"default,omitzero"`
	Configs     []ToolConfig `json:"configs,omitempty"`
	Name        string       `json:"name,omitempty"`
	Description string       `json:"description,omitempty"`
	InputSchema Raw          `json:"input_schema,omitempty"`
	Server      string       `json:"server,omitempty"`
}

// ToolConfig switches one tool (or, as a toolset's Default, all that are not named).
type ToolConfig struct {
	Name    string     `json:"name,omitempty"`
	Enabled bool       `json:"enabled"`
	Policy  Permission `json:"policy"`
	Web     Raw        `json:"web,omitempty"` // web_fetch and web_search extras, kept as sent after validation
}

// Permission is what decides a tool call before it runs.
type Permission string

// The permission policies. Auto lets a second model judge, and asks where that gives no verdict.
const (
	AlwaysAllow Permission = "always_allow"
	AlwaysAsk   Permission = "always_ask"
	AutoPolicy  Permission = "auto"
)

// MCPServer is a remote tool server an agent may use.
type MCPServer struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// SkillRef names a skill. Kind is "anthropic" or "custom".
type SkillRef struct {
	Kind    string `json:"kind"`
	ID      string `json:"id"`
	Version string `json:"version,omitempty"`
}

// Environment says where a session's hands work. Running sessions keep the environment they started with.
type Environment struct {
	ID          EnvironmentID     `json:"id"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Scope       string            `json:"scope,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Config      EnvConfig         `json:"config"`
	CreatedAt   time.Time         `json:"created_at"`
	UpdatedAt   time.Time         `json:"updated_at"`
	ArchivedAt  time.Time         `json:"archived_at,omitzero"`
	Org         OrgID             `json:"-"` // whose it is
}

// EnvConfig is the part of an environment that a sandbox is made from.
//
// Kind is "cloud" (a sandbox this server makes) or "self_hosted" (somebody's worker). The fields after Packages are
// Outboard's own and zero when a client does not speak them.
type EnvConfig struct {
	Kind       string              `json:"kind"`
	Networking Networking          `json:"networking"`
	Packages   map[string][]string `json:"packages,omitempty"` // apt cargo gem go npm pip
	// "" or "host"; debootstrap:SUITE[:VARIANT]; else a directory or a .tar path on the server
	Rootfs   string `json:"rootfs,omitempty"`
	Image    string `json:"image,omitempty"`    // name of an OCI image, instead of Rootfs
	Template string `json:"template,omitempty"` // NAME, NAME:TAG or an id, instead of both
	// what Template meant when the session or box was made; "" in an environment
	Build     TemplateBuildID `json:"build,omitempty"`
	Isolation string          `json:"isolation,omitempty"`
	Limits    SandboxLimits   `json:"limits,omitzero"`
	Lifecycle Lifecycle       `json:"lifecycle,omitzero"`
}

// Installs reports whether packages are to be installed.
func (c EnvConfig) Installs() bool {
	for _, list := range c.Packages {
		if len(list) > 0 {
			return true
		}
	}
	return false
}

// Lifecycle is what becomes of the sandbox of a session that rests, and how many there may be. A number of 0 is
// the server's default, and a negative one switches it off.
type Lifecycle struct {
	StopAfterSec int64 `json:"stop_after_seconds"` // of rest: its processes end, its disk is kept
	DropAfterSec int64 `json:"drop_after_seconds"` // of rest: only its checkpoint is kept
	MaxAgeSec    int64 `json:"max_age_seconds"`    // since it was made: it is stopped at the next pause
	MaxSandboxes int   `json:"max_sandboxes"`      // of the environment, alive at the same time
}

// Or returns l with d's numbers where it has none.
func (l Lifecycle) Or(d Lifecycle) Lifecycle {
	return Lifecycle{StopAfterSec: cmp.Or(l.StopAfterSec, d.StopAfterSec),
		DropAfterSec: cmp.Or(l.DropAfterSec, d.DropAfterSec),
		MaxAgeSec:    cmp.Or(l.MaxAgeSec, d.MaxAgeSec), MaxSandboxes: cmp.Or(l.MaxSandboxes, d.MaxSandboxes)}
}

// Networking is what a sandbox may reach. Mode is "unrestricted", "limited" (only what the other fields name) or
// "none" (nothing). Rules, Budget and Ask are Outboard's own.
type Networking struct {
	Mode                 string    `json:"mode"`
	AllowedHosts         []string  `json:"allowed_hosts,omitempty"`
	AllowMCPServers      bool      `json:"allow_mcp_servers,omitempty"`
	AllowPackageManagers bool      `json:"allow_package_managers,omitempty"`
	Rules                []NetRule `json:"rules,omitempty"`
	Budget               NetBudget `json:"budget,omitzero"`
	Ask                  NetAsk    `json:"ask,omitzero"`
	DenyNetworks         []string  `json:"deny_networks,omitempty"` // CIDRs no address of which is dialled, of a box;
	DenyExcept           []string  `json:"deny_except,omitempty"`   // but those in these
}

// NetAsk is who is asked about a host that is on no list. The zero value asks anybody who answers approvals.
type NetAsk struct {
	Approver Approver `json:"approver,omitempty"` // "none" = nobody is asked
	// how long an answer may take; 0 = as the server is configured
	TimeoutSec int64 `json:"timeout_seconds,omitempty"`
}

// ApproverNone asks nobody. It is for NetAsk alone.
const ApproverNone Approver = "none"

// NetRule allows or denies requests by what they are. A rule that denies wins over every other.
type NetRule struct {
	Host    string   `json:"host"`              // a name, *.name, an IP address, or *
	Port    int      `json:"port,omitempty"`    // 0 = 80 and 443, -1 = every port
	Methods []string `json:"methods,omitempty"` // empty = every method
	Path    string   `json:"path,omitempty"`    // "" = every path; * any part of a segment, a final ** any rest
	Deny    bool     `json:"deny,omitempty"`
	// WebSocket lets a connection become a WebSocket, in which only bytes are counted, not requests.
	WebSocket bool `json:"websocket,omitempty"`
	// Trusted lets private data go there unasked, though the session has read what strangers wrote.
	Trusted bool `json:"trusted,omitempty"`
}

// NetBudget bounds what one session may send out. Zero means the default.
type NetBudget struct {
	Requests int64 `json:"requests,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"` // of requests: address, headers and body
	Hosts    int   `json:"hosts,omitempty"` // different ones
}

// SandboxLimits bounds one sandbox. Zero means the provider's default.
type SandboxLimits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	Pids        int     `json:"pids,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// Check refuses limits that no sandbox can have, by the name of the field. Whether a provider keeps them is not
// asked here.
func (l SandboxLimits) Check() error {
	switch outside := "%s must be %v to %v, or 0 for the default, not %v"; {
	case l.MemoryBytes != 0 && (l.MemoryBytes < MinMemoryBytes || l.MemoryBytes > MaxMemoryBytes):
		return Errorf(Invalid, outside, "memory_bytes", MinMemoryBytes, int64(MaxMemoryBytes), l.MemoryBytes)
	case l.CPUs != 0 && !(l.CPUs >= MinCPUs && l.CPUs <= MaxCPUs): // so that it refuses what is no number as well
		return Errorf(Invalid, outside, "cpus", MinCPUs, MaxCPUs, l.CPUs)
	case l.Pids != 0 && (l.Pids < MinPids || l.Pids > MaxPids):
		return Errorf(Invalid, outside, "pids", MinPids, MaxPids, l.Pids)
	case l.DiskBytes != 0 && (l.DiskBytes < MinDiskBytes || l.DiskBytes > MaxDiskBytes):
		return Errorf(Invalid, outside, "disk_bytes", MinDiskBytes, int64(MaxDiskBytes), l.DiskBytes)
	}
	return nil
}
