package outboard

import (
	"crypto/rand"
	"fmt"
	"time"
)

// TemplateID names a template: "tpl" and 20 lower-case letters and digits, as clients of the E2B API want it.
type TemplateID string

// TemplateBuildID names one build of a template. It is a UUID, for the same clients.
type TemplateBuildID string

const templatePrefix = "tpl"

// NewTemplateID returns a fresh random id.
func NewTemplateID() TemplateID { return TemplateID(templatePrefix + randomLabel()) }

// Valid reports whether the id has the shape of one.
func (id TemplateID) Valid() bool { return validLabel(templatePrefix, string(id)) }

// NewTemplateBuildID returns a fresh random id.
func NewTemplateBuildID() TemplateBuildID {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // version 4, variant 1
	return TemplateBuildID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// DefaultTag is the tag that a name means which says none.
const DefaultTag = "default"

// Template is a name for prepared stacks of layers that sandboxes begin with. Each was made by a build, and tags
// say which is meant.
type Template struct {
	ID        TemplateID             `json:"id"`
	Name      string                 `json:"name"` // unique among those of an organization that are not deleted
	Owner     KeyID                  `json:"owner"`
	Tags      map[string]TemplateTag `json:"tags,omitempty"` // of builds that are ready
	Secret    string                 `json:"secret"`         // signs links for uploads to it
	CreatedAt time.Time              `json:"created_at"`
	UpdatedAt time.Time              `json:"updated_at"`
	DeletedAt time.Time              `json:"deleted_at,omitzero"` // nothing begins with it any more; what did goes on
	Org       OrgID                  `json:"-"`                   // whose it is
}

// TemplateTag is what a tag means, and since when.
type TemplateTag struct {
	Build TemplateBuildID `json:"build"`
	At    time.Time       `json:"at"`
}

// TemplateState is where a build is.
type TemplateState string

// The states of a build. The last two are for good.
const (
	TemplateWaiting  TemplateState = "waiting" // nobody has said yet what is to be built
	TemplateBuilding TemplateState = "building"
	TemplateReady    TemplateState = "ready"
	TemplateFailed   TemplateState = "error"
)

// TemplateBuild is one build of a template. Its row never goes: sessions and boxes that began with it may have
// to be made again.
type TemplateBuild struct {
	ID       TemplateBuildID `json:"id"`
	Template TemplateID      `json:"template"`
	Owner    KeyID           `json:"owner"`
	Person   UserID          `json:"person,omitempty"` // whose key that is; "" = a program's
	// that builds it, or did, or is about to; "" while a client has yet to say what
	Host      string         `json:"host,omitempty"`
	State     TemplateState  `json:"state"`
	Tags      []string       `json:"tags"` // that will mean it when it is ready
	Spec      TemplateSpec   `json:"spec"`
	Result    TemplateResult `json:"result,omitzero"`
	Error     string         `json:"error,omitempty"`      // why it failed
	ErrorStep int            `json:"error_step,omitempty"` // number of the step that failed, from 1; 0 = none of them
	CreatedAt time.Time      `json:"created_at"`           //
	StartedAt time.Time      `json:"started_at,omitzero"`  //
	EndedAt   time.Time      `json:"finished_at,omitzero"` //
	Org       OrgID          `json:"-"`                    // whose it is
}

// TemplateSpec says what is to be built.
type TemplateSpec struct {
	Image string `json:"image,omitempty"` // it begins with; "" = the host's programs
	// the credential it is pulled with, VAULT/NAME; "" = who the server is
	Login     string          `json:"login,omitempty"`
	From      TemplateBuildID `json:"from,omitempty"`      // whose steps the first of Steps are
	Inherited int             `json:"inherited,omitempty"` // how many of Steps those are
	Isolation string          `json:"isolation,omitempty"`
	Limits    SandboxLimits   `json:"limits,omitzero"` // of its build, and of boxes that are made from it
	// that steps reach, besides the registries of package managers
	Hosts []string       `json:"allowed_hosts,omitempty"`
	Steps []TemplateStep `json:"steps,omitempty"`
	Start string         `json:"start,omitempty"` // a command that runs in every sandbox from its beginning
	// sandboxes that are started before anybody asks, while a tag means the build
	Warm  int    `json:"warm,omitempty"`
	Ready string `json:"ready,omitempty"` // a command that ends with status 0 once the sandbox is ready
}

// TemplateStepKind says what a step does.
type TemplateStepKind string

// The kinds of a step. Run and Copy write files; the others hold for the steps after them, and for the template.
const (
	StepRun     TemplateStepKind = "run"
	StepCopy    TemplateStepKind = "copy"
	StepEnv     TemplateStepKind = "env"
	StepWorkdir TemplateStepKind = "workdir" // makes the directory too
	StepUser    TemplateStepKind = "user"
)

// TemplateStep is one step of a build. Which fields it has depends on Kind.
type TemplateStep struct {
	Kind    TemplateStepKind `json:"kind"`
	Command string           `json:"command,omitempty"` // run: of a shell
	// run, copy: who, or whose; "" = who the steps before say. user: who from here on
	User   string            `json:"user,omitempty"`
	Source string            `json:"source,omitempty"` // copy: a name or pattern in the archive
	Target string            `json:"target,omitempty"` // copy: where to. workdir: the directory
	Mode   string            `json:"mode,omitempty"`   // copy: of its files, in octal; "" = as in the archive
	Files  BlobRef           `json:"files,omitzero"`   // copy: a tar, which may be compressed with gzip
	Env    map[string]string `json:"env,omitempty"`    // env: $NAME stands for what a variable is before
	// of a step that another template had first: what it reached
	Hosts []string `json:"allowed_hosts,omitempty"`
	// makes it another step than one that is the same, so that it runs again
	Salt string `json:"salt,omitempty"`
}

// TemplateResult is what came of a build.
type TemplateResult struct {
	Digest  string            `json:"digest,omitempty"` // of the image
	Layers  []string          `json:"layers"`           // names of layers, top first
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"` // "" = where programs begin anyway
	User    string            `json:"user,omitempty"`    // "" = the tool's
}

// TemplateLine is a line of a build's log.
type TemplateLine struct {
	At      time.Time
	Level   string // debug, info, warn or error
	Step    int    // from 1; 0 = none
	Message string
}
