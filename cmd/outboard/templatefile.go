package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"strings"

	"github.com/outboard-dev/outboard"
)

// maxRecipe bounds a file with steps; the server takes half of it in text.
const maxRecipe = 1 << 20

// recipe is what a file says of a template.
type recipe struct {
	image   string // it begins with, or
	from    string // another template; neither: the host's programs
	start   string
	ready   string
	steps   []recipeStep
	ignored []string // what was left out, for people
	begun   bool     // there was a FROM
}

// recipeStep is a step as the API takes it.
type recipeStep struct {
	Type    string            `json:"type"`
	Command string            `json:"command,omitempty"`
	User    string            `json:"user,omitempty"`
	File    string            `json:"file_id,omitempty"`
	Source  string            `json:"source,omitempty"`
	Target  string            `json:"target,omitempty"`
	Mode    string            `json:"mode,omitempty"`
	Path    string            `json:"path,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	line    int
}

// recipeError is what is wrong in a line of a file.
type recipeError struct {
	line int
	err  error
}

// Error leaves out the line: who knows the file's name says both.
func (e *recipeError) Error() string { return e.err.Error() }

// Unwrap returns what is wrong.
func (e *recipeError) Unwrap() error { return e.err }

func readBounded(r io.Reader, file string) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxRecipe+1))
	if err == nil && len(b) > maxRecipe {
		err = outboard.Errorf(outboard.TooLarge, "%s has more than %d bytes", file, maxRecipe)
	}
	return string(b), err
}

// parseRecipe reads a file in the words of a Dockerfile. What would mean something else here than there is an error.
func parseRecipe(text string) (*recipe, error) {
	r := new(recipe)
	for line, rest := range instructions(text) {
		word, args, _ := strings.Cut(rest, " ")
		if i := strings.IndexAny(rest, " \t"); i >= 0 {
			word, args = rest[:i], rest[i:]
		}
		if err := r.instruction(line, strings.ToUpper(word), strings.TrimSpace(args)); err != nil {
			return nil, &recipeError{line, err}
		}
	}
	if !r.begun {
		return nil, &recipeError{1, usagef("there is no FROM")}
	}
	return r, nil
}

// instructions yields the number of the line where each begins, and its text without comments and ends of lines.
func instructions(text string) func(func(int, string) bool) {
	return func(yield func(int, string) bool) {
		begin, whole, n := 0, "", 0
		for line := range strings.Lines(text) {
			n++
			line = strings.TrimRight(line, " \t\r\n")
			if bare := strings.TrimSpace(line); strings.HasPrefix(bare, "#") || bare == "" {
				continue
			}
			if whole == "" {
				begin = n
			}
			part, more := strings.CutSuffix(line, `\`)
			if whole += part; more {
				continue
			}
			if whole = strings.TrimSpace(whole); whole != "" && !yield(begin, whole) {
				return
			}
			whole = ""
		}
		if whole = strings.TrimSpace(whole); whole != "" {
			yield(begin, whole)
		}
	}
}

// otherWords are Docker's words that are errors, with what to do instead.
var otherWords = map[string]string{
	"ADD": "use COPY, or RUN with a download", "ARG": "use ENV", "CMD": "START says what runs in every sandbox", "ENTRYPOINT": "START says what runs in every sandbox",
	"HEALTHCHECK": "READY says when a sandbox is ready", "ONBUILD": "write the steps themselves", "SHELL": "commands run with bash, or sh where there is none",
	"STOPSIGNAL": "leave it out", "VOLUME": "leave it out: everything of a sandbox is kept with it",
}

func (r *recipe) instruction(line int, word, args string) error {
	instead, other := otherWords[word]
	switch {
	case other:
		return usagef("%s is not taken: %s", word, instead)
	case word == "LABEL" || word == "EXPOSE" || word == "MAINTAINER":
		r.ignored = append(r.ignored, fmt.Sprintf("line %d: %s means nothing here and is left out", line, word))
		return nil
	case word != "FROM" && !r.begun:
		return usagef("a file begins with FROM, not with %s", quoteWord(word))
	case args == "":
		return usagef("%s needs something after it", quoteWord(word))
	}
	switch word {
	case "FROM":
		return r.base(args)
	case "START":
		return once(&r.start, word, args)
	case "READY":
		return once(&r.ready, word, args)
	case "RUN":
		return r.run(line, args)
	case "COPY":
		return r.copies(line, args)
	case "ENV":
		return r.env(line, args)
	case "WORKDIR":
		r.steps = append(r.steps, recipeStep{Type: "workdir", Path: args, line: line})
		return unexpanded(word, args)
	case "USER":
		r.steps = append(r.steps, recipeStep{Type: "user", User: args, line: line})
		return unexpanded(word, args)
	}
	return usagef("%s is no instruction: there are FROM, RUN, COPY, ENV, WORKDIR, USER, START and READY",
		quoteWord(word))
}

func quoteWord(s string) string { return fmt.Sprintf("%.60q", s) }

func once(to *string, word, args string) error {
	if *to != "" {
		return usagef("%s is there twice", word)
	}
	*to = args
	return nil
}

// unexpanded refuses variables where none are replaced: a directory called $HOME is nobody's wish.
func unexpanded(word, args string) error {
	if strings.Contains(args, "$") {
		return usagef("%s %s: variables are replaced in ENV and RUN only", word, args)
	}
	return nil
}

func (r *recipe) base(args string) error {
	words := strings.Fields(args)
	switch {
	case r.begun:
		return usagef("there is a second FROM: a template has one stage")
	case len(words) != 1 || strings.HasPrefix(words[0], "-"):
		return usagef("FROM names one image, base, or template:NAME, and nothing else")
	}
	r.begun = true
	if name, ok := strings.CutPrefix(words[0], "template:"); ok {
		r.from = name
	} else if words[0] != "base" {
		r.image = words[0]
	}
	return unexpanded("FROM", args)
}

// hereDocument is the beginning of one in a command.
var hereDocument = regexp.MustCompile(`(^|\s)<<-?["']?[A-Za-z_]`)

func (r *recipe) run(line int, args string) error {
	if strings.HasPrefix(args, "--") {
		return usagef("RUN takes no options")
	}
	if hereDocument.MatchString(args) {
		return usagef("here-documents are not taken: put the text into a file and COPY it")
	}
	if argv, ok := jsonWords(args); ok {
		for i := range argv {
			argv[i] = "'" + strings.ReplaceAll(argv[i], "'", `'\''`) + "'"
		}
		args = strings.Join(argv, " ")
	}
	r.steps = append(r.steps, recipeStep{Type: "run", Command: args, line: line})
	return nil
}

// jsonWords reads Docker's second way of writing arguments.
func jsonWords(args string) ([]string, bool) {
	var words []string
	return words, strings.HasPrefix(args, "[") && json.Unmarshal([]byte(args), &words) == nil
}

func (r *recipe) copies(line int, args string) error {
	step := recipeStep{Type: "copy", line: line}
	for strings.HasPrefix(args, "--") {
		option, rest, _ := strings.Cut(args, " ")
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "--chown":
			step.User = value
		case "--chmod":
			step.Mode = value
		default:
			return usagef("COPY takes --chown=USER and --chmod=MODE, not %s", option)
		}
		args = strings.TrimSpace(rest)
	}
	words, ok := jsonWords(args)
	if !ok {
		words = strings.Fields(args)
	}
	if len(words) < 2 {
		return usagef("COPY needs what to copy, and where to")
	}
	sources, target := words[:len(words)-1], words[len(words)-1]
	if len(sources) > 1 && !strings.HasSuffix(target, "/") {
		return usagef("COPY of several things: the target %s must be a directory, with / at its end", quoteWord(target))
	}
	step.Target = target
	for _, s := range sources {
		step.Source = strings.TrimPrefix(path.Clean("/"+s), "/")
		if step.Source == "" {
			step.Source = "."
		}
		if c := path.Clean(strings.TrimPrefix(s, "/")); c == ".." || strings.HasPrefix(c, "../") {
			return usagef("COPY %s leaves the directory", s)
		}
		r.steps = append(r.steps, step)
	}
	return unexpanded("COPY", args)
}

func (r *recipe) env(line int, args string) error {
	vars := map[string]string{}
	first, _, pairs := strings.Cut(args, "=")
	if i := strings.IndexAny(args, " \t"); i >= 0 && i < len(first) || !pairs { // ENV NAME VALUE
		if i < 0 {
			return usagef("ENV %s: write NAME=VALUE", args)
		}
		vars[args[:i]] = strings.TrimSpace(args[i:])
	} else {
		words, err := splitWords(args)
		if err != nil {
			return err
		}
		for _, w := range words {
			k, v, ok := strings.Cut(w, "=")
			if !ok || k == "" {
				return usagef("ENV %s is not NAME=VALUE", w)
			}
			vars[k] = v
		}
	}
	for k, v := range vars {
		if strings.Contains(plainVariable.ReplaceAllString(v, ""), "$") {
			return usagef("ENV %s: $NAME and ${NAME} stand for what was set before; any other use of $ is not taken", k)
		}
	}
	r.steps = append(r.steps, recipeStep{Type: "env", Env: vars, line: line})
	return nil
}

var plainVariable = regexp.MustCompile(`\$([A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)

// splitWords splits at blanks, but not in quotes or behind a backslash, and takes those away. A $ that these
// keep from its meaning is an error: the server replaces it in any case.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(text); i++ {
		b := text[i]
		switch {
		case b == '\\' && quote != '\'' && i+1 < len(text):
			if i++; text[i] == '$' {
				return nil, usagef(`ENV: \$ is not taken: $ always stands for a variable`)
			}
			word.WriteByte(text[i])
			in = true
		case b == '$' && quote == '\'':
			return nil, usagef("ENV: $ stands for a variable, in single quotes as well")
		case quote != 0 && b == quote:
			quote = 0
		case quote == 0 && (b == '"' || b == '\''):
			quote, in = b, true
		case quote == 0 && (b == ' ' || b == '\t'):
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		default:
			word.WriteByte(b)
			in = true
		}
	}
	if quote != 0 {
		return nil, usagef("a quotation mark %c has no end", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}
