// Runs Terraform, and stands between it and the provider that TF_REATTACH_PROVIDERS names. It passes each call on as it
// is, and of the provider's schemas only those of the types in SCHEMA_FILTER_TYPES. It asks each build of the provider
// for them once, and keeps them beside itself. As it does the place of the provider that a lock file has been held against:
// Terraform's `init` reads its 700 MB twice for that, and here once for each lock file.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	reattachVariable = "TF_REATTACH_PROVIDERS"
	getSchema        = "/tfplugin5.Provider/GetSchema"
	messageLimit     = 256 << 20
)

// Fields of tfplugin5's GetProviderSchema.Response: maps by type of resources, data sources and ephemeral resources, and
// what is wrong. See docs/plugin-protocol/tfplugin5.proto of hashicorp/terraform at 5abc0d2.
const diagnostics = 4

var lockEntry = regexp.MustCompile(`provider "(\S+/hashicorp/aws)" \{\s+version\s+= "([^"]+)"`)

var byType = []protowire.Number{2, 3, 8}

type reattached struct {
	Protocol        string
	ProtocolVersion int
	Pid             int
	Test            bool
	Addr            address
}

type address struct{ Network, String string }

func main() {
	log.SetFlags(0)
	program := os.Getenv("SCHEMA_FILTER_PROGRAM")
	providers := map[string]reattached{}
	if text := os.Getenv(reattachVariable); text != "" {
		check(json.Unmarshal([]byte(text), &providers))
	}
	for name, provider := range providers {
		if provider.Addr.String == "" { // the command asks it nothing
			continue
		}
		listener := serve(provider)
		provider.Addr.String = listener.Addr().String()
		providers[name] = provider
		text, err := json.Marshal(providers)
		check(err)
		check(os.Setenv(reattachVariable, string(text)))
		os.Exit(run(program))
	}
	if len(providers) == 0 && slices.Contains(os.Args, "init") {
		initialize(program)
	}
	check(syscall.Exec(program, os.Args, os.Environ()))
}

// initialize links the provider that passed for the same lock file before, and lets `init` take it for a running one, which
// it leaves alone. It returns where there is no lock file of the provider.
func initialize(program string) {
	folder := "."
	for _, word := range os.Args {
		if path, isFolder := strings.CutPrefix(word, "-chdir="); isFolder {
			folder = path
		}
	}
	lock, _ := os.ReadFile(filepath.Join(folder, ".terraform.lock.hcl"))
	entry := lockEntry.FindStringSubmatch(string(lock))
	if entry == nil {
		return
	}
	platform := runtime.GOOS + "_" + runtime.GOARCH
	installed := filepath.Join(folder, ".terraform/providers", entry[1], entry[2], platform)
	passed := locate("provider", string(lock))
	target, err := os.Readlink(passed)
	if _, gone := os.Stat(passed); err != nil || gone != nil {
		code := run(program)
		if target, err := os.Readlink(installed); err == nil && code == 0 {
			part := fmt.Sprintf("%s-%d", passed, os.Getpid()) // renamed: others may read it meanwhile
			os.Symlink(target, part)
			os.Rename(part, passed)
		}
		os.Exit(code)
	}
	check(os.MkdirAll(filepath.Dir(installed), 0o755))
	if err := os.Symlink(target, installed); !errors.Is(err, os.ErrExist) {
		check(err)
	}
	text, err := json.Marshal(map[string]reattached{entry[1]: {Protocol: "grpc", ProtocolVersion: 5, Test: true, Addr: address{Network: "unix"}}})
	check(err)
	check(os.Setenv(reattachVariable, string(text)))
}

// locate returns the path of what is kept for a key.
func locate(kind string, key ...any) string {
	own, err := os.Executable()
	check(err)
	return filepath.Join(filepath.Dir(own), fmt.Sprintf("%s-%x", kind, sha256.Sum256([]byte(fmt.Sprint(key...)))))
}

func check(err error) {
	if err != nil {
		log.Fatalf("schema-filter: %v", err)
	}
}

// run runs Terraform and returns its exit code. An interrupt reaches the whole process group, Terraform too.
func run(program string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	runtime.LockOSThread() // with which the child would end
	command := exec.Command(program, os.Args[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(command.Start())
	go func() {
		for sent := range signals {
			if sent != os.Interrupt {
				command.Process.Signal(sent)
			}
		}
	}()
	command.Wait()
	return command.ProcessState.ExitCode()
}

// serve answers for the provider on a socket beside its own.
func serve(provider reattached) net.Listener {
	types := strings.Fields(os.Getenv("SCHEMA_FILTER_TYPES"))
	kept := locateKept(provider.Pid, types)
	connection, err := grpc.NewClient(
		"unix:"+provider.Addr.String,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asBytes{}), grpc.MaxCallRecvMsgSize(messageLimit)),
	)
	check(err)
	server := grpc.NewServer(
		grpc.ForceServerCodec(asBytes{}),
		grpc.MaxRecvMsgSize(messageLimit),
		grpc.UnknownServiceHandler(func(_ any, caller grpc.ServerStream) error {
			method, _ := grpc.MethodFromServerStream(caller)
			if method != getSchema {
				return forward(connection, method, caller, func(message []byte) []byte { return message })
			}
			if schemas, err := os.ReadFile(kept); err == nil {
				return caller.SendMsg(&schemas)
			}
			return forward(connection, method, caller, func(message []byte) []byte {
				return keep(kept, message, types)
			})
		}),
	)
	socket := provider.Addr.String + "f"
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	check(err)
	go server.Serve(listener)
	return listener
}

// locateKept returns the file of the schemas of these types that this build of the provider has.
func locateKept(pid int, types []string) string {
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	check(err)
	info, err := os.Stat(program)
	check(err)
	return locate("schemas", program, info.Size(), info.ModTime(), types)
}

// keep returns the schemas of the types, and writes them to a file unless the provider reports an error.
func keep(file string, response []byte, types []string) []byte {
	var kept []byte
	isComplete := true
	for len(response) > 0 {
		number, _, size := protowire.ConsumeField(response)
		check(protowire.ParseError(size))
		field := response[:size]
		response = response[size:]
		isComplete = isComplete && number != diagnostics
		if !slices.Contains(byType, number) || slices.Contains(types, readKey(field)) {
			kept = append(kept, field...)
		}
	}
	if part, err := os.CreateTemp(filepath.Dir(file), "part-"); err == nil && isComplete {
		_, err := part.Write(kept)
		check(errors.Join(err, part.Close(), os.Rename(part.Name(), file)))
	}
	return kept
}

// readKey returns the key of a map's entry, which is the first field of its message.
func readKey(field []byte) string {
	_, _, tag := protowire.ConsumeTag(field)
	entry, _ := protowire.ConsumeBytes(field[tag:])
	_, _, tag = protowire.ConsumeTag(entry)
	key, _ := protowire.ConsumeString(entry[tag:])
	return key
}

// forward passes a call on, with all messages both ways.
func forward(connection *grpc.ClientConn, method string, caller grpc.ServerStream, change func([]byte) []byte) error {
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()
	incoming, _ := metadata.FromIncomingContext(ctx)
	ctx = metadata.NewOutgoingContext(ctx, incoming)
	provider, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		var message []byte
		for caller.RecvMsg(&message) == nil && provider.SendMsg(&message) == nil {
		}
		provider.CloseSend()
	}()
	for {
		var message []byte
		if err := provider.RecvMsg(&message); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		message = change(message)
		if err := caller.SendMsg(&message); err != nil {
			return err
		}
	}
}

// asBytes leaves messages as they are.
type asBytes struct{}

func (asBytes) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (asBytes) Unmarshal(data []byte, message any) error {
	*message.(*[]byte) = data
	return nil
}

func (asBytes) Name() string { return "proto" }
