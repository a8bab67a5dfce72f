import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.connect.mirror.MirrorMaker;
import org.apache.kafka.connect.mirror.MirrorMakerConfig;
import org.apache.kafka.connect.mirror.SourceAndTarget;

/** What Java makes of properties files of a dedicated mirror: a file a line comes in, its configs as JSON go out. */
public class MirrorMakerConfigJudge {
    public static void main(String[] arguments) throws Exception {
        BufferedReader files = new BufferedReader(new InputStreamReader(System.in));
        ObjectMapper json = new ObjectMapper();
        for (String file = files.readLine(); file != null; file = files.readLine()) {
            System.out.println(json.writeValueAsString(told(file)));
        }
    }

    private static Map<String, Object> told(String file) throws Exception {
        Map<String, Object> found = new TreeMap<>();
        try {
            MirrorMakerConfig config = new MirrorMakerConfig(Utils.propsToStringMap(Utils.loadProps(file)));
            for (String cluster : config.clusters()) {
                found.put(cluster, ofClient(config, cluster));
            }
            for (SourceAndTarget flow : config.clusterPairs()) {
                Map<String, Object> configs = new TreeMap<>();
                configs.put("worker", config.workerConfig(flow));
                for (Class<?> connector : MirrorMaker.CONNECTOR_CLASSES) {
                    configs.put(connector.getSimpleName(), config.connectorBaseConfig(flow, connector));
                }
                found.put(flow.toString(), configs);
            }
        } catch (RuntimeException error) {
            found.clear();
            found.put("error", error.toString());
        }
        return found;
    }

    /** Null where a value is none for a client: that says nothing of which keys it gets. */
    private static Map<String, String> ofClient(MirrorMakerConfig config, String cluster) {
        try {
            return config.clientConfig(cluster).originalsStrings();
        } catch (ConfigException refused) {
            return null;
        }
    }
}
